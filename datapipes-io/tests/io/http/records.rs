//! Records of a file on a web server, read as it arrives.

use datapipes::DataLoader;
use datapipes_io::formats::Lines;
use datapipes_io::prelude::*;

use super::*;

fn text() -> String {
    (0..40_000)
        .map(|n| format!("{n} {}\n", "x".repeat(90)))
        .collect()
}

#[test]
fn a_stopped_epoch_asks_a_web_server_for_the_rest_of_a_file() {
    let text = text();
    let expected: Vec<&str> = text.lines().collect();
    for workers in [0, 2] {
        let server = BadHttp::start();
        server.on("/k", [object(text.clone())]);
        let loader = || {
            let lines = store_of(&server).files(["k"]).stream_as(Lines::new(), 0);
            DataLoader::builder(lines)
                .workers(workers)
                .resumable()
                .build()
                .expect("a loader")
        };
        let first = loader();
        let mut epoch = first.epoch(0).blocking();
        let before: Vec<String> = epoch
            .by_ref()
            .take(30_000)
            .map(|line| line.expect("a line"))
            .collect();
        let state = epoch.checkpoint().expect("a state");
        drop(epoch);
        let asked = server.requests_to("/k").len();
        let rest = loader().resume(&state).expect("it goes on").blocking();
        let after: Vec<String> = rest.map(|line| line.expect("a line")).collect();
        assert_eq!([before, after].concat(), expected);
        let ranges: Vec<String> = server.requests_to("/k")[asked..]
            .iter()
            .filter_map(|request| request.header("range").map(str::to_owned))
            .collect();
        let begins: Vec<usize> = ranges
            .iter()
            .map(|range| {
                range
                    .trim_start_matches("bytes=")
                    .split('-')
                    .next()
                    .and_then(|n| n.parse().ok())
            })
            .map(|begin| begin.expect("a range has a beginning"))
            .collect();
        assert_eq!(begins.len(), 1, "{ranges:?}");
        assert!(
            begins[0] > text.len() / 4 && text.as_bytes()[begins[0] - 1] == b'\n',
            "{ranges:?}"
        );
    }
}

#[test]
fn a_file_of_unknown_length_is_read_as_it_arrives() {
    let text = text();
    let server = BadHttp::start();
    server.on("/k", [raw(chunked(text.as_bytes(), 5000))]);
    let lines = store_of(&server).files(["k"]).read_as(Lines::new());
    assert_eq!(
        lines.collect().expect("lines"),
        text.lines().collect::<Vec<_>>()
    );
}
