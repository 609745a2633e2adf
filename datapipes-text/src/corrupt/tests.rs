//! Tests of masks and spans.

use datapipes::Graph;
use datapipes::testing::check_pipe;

use super::*;
use datapipes::ErrorKind;

fn documents(lengths: impl IntoIterator<Item = u32>) -> Vec<Vec<u32>> {
    lengths
        .into_iter()
        .map(|len| (100..100 + len).collect())
        .collect()
}

#[test]
fn keep_the_contract() {
    check_pipe(&MaskTokens::new(1, 99).rate(0.4), documents(0..9));
    check_pipe(&SpanCorruption::new(99).density(0.4), documents(0..9));
}

#[test]
fn tokens_are_masked_by_berts_rule() {
    let mask = MaskTokens::new(1, 90).never([100, 101]);
    let all = Graph::from_vec(documents([500; 40]))
        .pipe(mask)
        .collect()
        .unwrap();
    let (mut masked, mut random, mut same) = (0, 0, 0);
    for tokens in &all {
        let labels = tokens.labels.as_ref().unwrap();
        assert_eq!(labels[..2], [-100, -100]);
        for ((id, label), was) in tokens.ids.iter().zip(labels).zip(100..) {
            match (*label >= 0, *id) {
                (false, id) => assert_eq!(id, was),
                (true, 1) => masked += 1,
                (true, id) if id == was => same += 1,
                (true, id) => random += u32::from(id < 90),
            }
            assert!(*label == -100 || *label == i64::from(was));
        }
    }
    // 3,000 of the 20,000 tokens are chosen.
    assert!(
        (2200..2600).contains(&masked) && (220..380).contains(&random),
        "{masked} {random}"
    );
    assert!((220..380).contains(&same), "{same}");
    assert_ne!(all[0], all[1]);
}

#[test]
fn what_is_not_trained_is_not_masked() {
    let tokens = Tokens {
        ids: (100..1100).collect(),
        labels: Some(
            (100..1100)
                .map(|id| if id < 600 { -100 } else { id })
                .collect(),
        ),
        offsets: None,
    };
    let graph = Graph::from_vec(vec![tokens]).pipe(MaskTokens::new(1, 90).rate(0.5));
    let masked = graph.collect().unwrap().remove(0);
    let labels = masked.labels.unwrap();
    assert!(masked.ids[..500].iter().copied().eq(100..600));
    assert!(labels[..500].iter().all(|&label| label == -100));
    let chosen = labels[500..].iter().filter(|&&label| label >= 0).count();
    assert!((200..300).contains(&chosen), "{chosen}");
    let odd = Tokens {
        ids: vec![1, 2],
        labels: Some(vec![1]),
        offsets: None,
    };
    let error = Graph::from_vec(vec![odd])
        .pipe(MaskTokens::new(1, 90))
        .collect();
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Shape);
    assert!(error.to_string().contains("2 ids and 1 labels"), "{error}");
}

#[test]
fn spans_are_in_the_targets_and_everything_is_in_one_of_both() {
    let all = Graph::from_vec(documents(2..80)).pipe(SpanCorruption::new(99));
    for ((inputs, targets), len) in all.collect().unwrap().into_iter().zip(2..) {
        let (noise, expected) = SpanCorruption::new(99).counts(len as usize);
        let spans = inputs.iter().filter(|&&id| id < 100).count();
        assert_eq!(spans, expected);
        assert_eq!(inputs.len(), len as usize - noise + spans);
        assert_eq!(targets.len(), noise + spans + 1);
        assert_eq!(targets.last(), Some(&(99 - spans as u32)));
        // Each sentinel is replaced by its span.
        let mut whole = Vec::new();
        for &id in &inputs {
            if id >= 100 {
                whole.push(id);
                continue;
            }
            let at = targets.iter().position(|&target| target == id).unwrap();
            let span: Vec<u32> = targets[at + 1..]
                .iter()
                .copied()
                .take_while(|&id| id >= 100)
                .collect();
            assert!(!span.is_empty());
            whole.extend(span);
        }
        assert_eq!(whole, Vec::from_iter(100..100 + len));
    }
    let short = Graph::from_vec(documents([0, 1]))
        .pipe(SpanCorruption::new(99))
        .collect()
        .unwrap();
    assert_eq!(short, [(vec![], vec![99]), (vec![100], vec![99])]);
}

/// `make.py` in `tests/data` wrote the file, with T5's own functions.
#[test]
fn spans_are_those_of_t5() {
    let golden = include_bytes!("../../tests/data/t5.json");
    let golden: serde_json::Value = serde_json::from_slice(golden).unwrap();
    let numbers = |list: &serde_json::Value| -> Vec<usize> {
        let list = list.as_array().unwrap().iter();
        list.map(|number| number.as_u64().unwrap() as usize)
            .collect()
    };
    for (len, counts) in (2..).zip(golden["counts"].as_array().unwrap()) {
        let (noise, spans) = SpanCorruption::new(32_099).counts(len);
        assert_eq!(vec![noise, spans], numbers(counts), "{len} tokens");
    }
    for case in golden["cases"].as_array().unwrap() {
        let spans = SpanCorruption::new(32_099)
            .density(case["density"].as_f64().unwrap())
            .span(case["span"].as_f64().unwrap());
        let (len, [kept, noise]) = (
            case["length"].as_u64().unwrap() as usize,
            ["kept", "noise"].map(|name| numbers(&case[name])),
        );
        let counts = (noise.iter().sum(), noise.len());
        assert_eq!(spans.counts(len), counts, "{case}");
        let ids: Vec<u32> = (100..100 + len as u32).collect();
        let (inputs, mut targets) = spans.replaced(&ids, &kept, &noise);
        // T5 has no sentinel at the end, as the figure of its paper does.
        assert_eq!(targets.pop(), Some(32_099 - noise.len() as u32));
        for (own, name) in [(inputs, "inputs"), (targets, "targets")] {
            let own = own.into_iter().map(|id| id as usize);
            assert!(own.eq(numbers(&case[name])), "{name}: {case}");
        }
    }
}

#[test]
fn a_document_with_more_spans_than_sentinels_is_named() {
    let lengths = [10, 1990, 2048];
    let graph = Graph::from_vec(documents(lengths)).pipe(SpanCorruption::new(99));
    let error = graph.collect().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Limit);
    let said = "span_corruption: 0:2: limit reached: a document of 2048 tokens has 102 spans, which take 103 \
                sentinels of 100; cut it, or set other spans";
    assert_eq!(error.to_string(), said);
    // The sentinel at the end is the last one, with the id 0.
    let spans = SpanCorruption::new(102).sentinels(103);
    let (inputs, targets) = Graph::from_vec(documents([2048]))
        .pipe(spans)
        .collect()
        .unwrap()
        .remove(0);
    assert_eq!((inputs.iter().min(), targets.last()), (Some(&1), Some(&0)));
}

#[test]
fn wrong_settings_do_not_start() {
    let said = |graph: datapipes::Result<()>| graph.unwrap_err().to_string();
    let one = || Graph::from_vec(documents([1]));
    let mask = said(one().pipe(MaskTokens::new(1, 0)).collect().map(drop));
    assert!(mask.contains("no vocabulary"), "{mask}");
    let span = said(
        one()
            .pipe(SpanCorruption::new(99).span(f64::NAN))
            .collect()
            .map(drop),
    );
    assert!(span.contains("spans of less than a token"), "{span}");
    for spans in [SpanCorruption::new(98), SpanCorruption::new(9).sentinels(0)] {
        let none = said(one().pipe(spans).collect().map(drop));
        assert!(none.contains("more of them than ids"), "{none}");
    }
}
