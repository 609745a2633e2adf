//! Figures that are published through the facade `metrics`, as OpenTelemetry gets them. A test of its
//! own, since a process has one recorder.

use std::collections::BTreeMap;

use datapipes::{DataLoader, Graph};
use metrics_exporter_opentelemetry::Recorder;
use opentelemetry_sdk::metrics::data::{AggregatedMetrics, MetricData};
use opentelemetry_sdk::metrics::{InMemoryMetricExporter, PeriodicReader};

#[test]
fn opentelemetry_gets_what_the_loader_did() {
    let exporter = InMemoryMetricExporter::default();
    let reader = PeriodicReader::builder(exporter.clone()).build();
    let (provider, _) = Recorder::builder("datapipes")
        .with_meter_provider(|builder| builder.with_reader(reader))
        .install()
        .unwrap();

    let graph = Graph::range(0..100).map(|n| n + 1).named("add").batch(10);
    let loader = DataLoader::builder(graph).metrics("train").build().unwrap();
    let mut wall = 0.0;
    for epoch in 0..3 {
        assert_eq!(loader.epoch(epoch).blocking().count(), 10);
        wall += loader.stats().unwrap().wall.as_secs_f64();
    }
    drop(loader);
    provider.force_flush().unwrap();

    let mut figures = BTreeMap::new();
    for metrics in exporter.get_finished_metrics().unwrap() {
        for metric in metrics.scope_metrics().flat_map(|scope| scope.metrics()) {
            let mut add = |attributes: Vec<String>, value: f64| {
                figures.insert(format!("{}{attributes:?}", metric.name()), value);
            };
            match metric.data() {
                AggregatedMetrics::U64(MetricData::Sum(sum)) => {
                    for point in sum.data_points() {
                        let labels = point.attributes().map(|label| label.value.to_string());
                        add(labels.collect(), point.value() as f64);
                    }
                }
                AggregatedMetrics::F64(MetricData::Gauge(gauge)) => {
                    for point in gauge.data_points() {
                        let labels = point.attributes().map(|label| label.value.to_string());
                        add(labels.collect(), point.value());
                    }
                }
                other => panic!("{} is {other:?}", metric.name()),
            }
        }
    }
    for (name, expected) in [
        ("datapipes_epochs_total[\"train\"]", 3.0),
        ("datapipes_delivered_items_total[\"train\"]", 30.0),
        ("datapipes_node_items_total[\"train\", \"add\"]", 300.0),
        ("datapipes_epoch[\"train\"]", 2.0),
    ] {
        assert_eq!(figures.get(name), Some(&expected), "{name} in {figures:#?}");
    }
    // The total of all epochs, though each publication asks for the gauge anew.
    let seconds = figures["datapipes_epoch_seconds_total[\"train\"]"];
    assert!((seconds - wall).abs() < 1e-6, "{seconds} {wall}");
}
