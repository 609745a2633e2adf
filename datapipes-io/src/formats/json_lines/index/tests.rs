//! Tests of indexes of lines: texts of all shapes, blocks of all sizes, stored forms that lie.

use proptest::prelude::*;

use super::*;
use crate::stores::InMemory;

/// Texts made of what matters to lines.
fn texts() -> impl Strategy<Value = Vec<u8>> {
    let parts = [
        "\n", "\r\n", "\n\n", " ", "\t", "\r", "1", "{}", "x", "\u{feff}",
    ];
    prop::collection::vec(prop::sample::select(parts.to_vec()), 0..30)
        .prop_map(|parts| parts.concat().into_bytes())
}

proptest! {
    #[test]
    fn blocks_of_any_size_give_the_same_index(text in texts(), cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..6)) {
        let whole = LineIndex::of(&text);
        // The mark at the beginning is looked for in the first block, which is longer than it.
        let mut cuts: Vec<usize> = cuts.iter().map(|cut| cut.index(text.len() + 1)).filter(|&cut| cut >= 3).collect();
        cuts.push(text.len());
        cuts.sort_unstable();
        let (mut scan, mut start) = (Scan::default(), 0);
        for cut in cuts {
            scan.add(pieces(&text[start..cut], start as u64));
            start = cut;
        }
        let source = Source { size: text.len() as u64, ..Source::default() };
        prop_assert_eq!(&scan.finish(source), &whole);
        prop_assert_eq!(LineIndex::from_bytes(&whole.to_bytes()).unwrap(), whole);
    }

    #[test]
    fn lines_are_those_of_a_split(text in texts()) {
        let index = LineIndex::of(&text);
        let skipped = if text.starts_with(BOM) { BOM.len() } else { 0 };
        let (mut at, mut expected) = (skipped, Vec::new());
        for (number, line) in text[skipped..].split_inclusive(|&byte| byte == b'\n').enumerate() {
            let range = at as u64..(at + line.len()) as u64;
            at += line.len();
            if !line.iter().all(|byte| b" \t\r\n".contains(byte)) {
                expected.push(LinePlace { range, number: number as u64 + 1 });
            }
        }
        let found: Vec<LinePlace> = (0..index.len()).map(|sample| index.line(sample).unwrap()).collect();
        prop_assert_eq!(found, expected);
        prop_assert_eq!(index.line(index.len()), None);
        prop_assert_eq!(index.line(u64::MAX), None);
    }

    #[test]
    fn row_135_numbers_that_lie_are_refused_or_give_ranges_within_the_file(numbers in prop::collection::vec(0u64..12, 2..20)) {
        // A stored form with a right checksum and any numbers.
        let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes()].concat();
        let lines = numbers[1].min(numbers.len() as u64 - 2);
        let head = [numbers[0], 0, lines, (numbers.len() as u64 - 2 - lines) / 3];
        bytes.extend(head.iter().chain(&numbers[2..]).flat_map(|number| number.to_le_bytes()));
        let sum = blake3::hash(&bytes);
        bytes.extend(sum.as_bytes());
        if let Ok(index) = LineIndex::from_bytes(&bytes) {
            for sample in 0..index.len() {
                let LinePlace { range, .. } = index.line(sample).unwrap();
                prop_assert!(range.start < range.end && range.end <= index.size);
            }
        }
    }
}

#[test]
fn a_stored_form_that_is_damaged_or_cut_is_refused() {
    let index = LineIndex::of(b"\n1\n\n\n2\n3\n ");
    let whole = index.to_bytes();
    assert_eq!(LineIndex::from_bytes(&whole).unwrap(), index);
    for len in 0..whole.len() {
        assert!(LineIndex::from_bytes(&whole[..len]).is_err(), "{len}");
        let mut damaged = whole.clone();
        damaged[len] ^= 4;
        assert!(LineIndex::from_bytes(&damaged).is_err(), "{len}");
    }
    let mut later = whole;
    later[8] = 2;
    let error = LineIndex::from_bytes(&later).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unsupported);
    assert!(error.to_string().contains("version 2, not 1"), "{error}");
}

/// Files of several blocks, with lines over their bounds, are searched on several threads.
#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_several_blocks_has_the_index_of_its_text() {
    let mut text = Vec::new();
    for number in 0..70_000 {
        let line = format!(
            "{{\"n\": {number}, \"text\": \"{}\"}}",
            "y".repeat(number % 300)
        );
        text.extend([line.as_bytes(), [&b"\n"[..], b"\r\n", b"\n\n"][number % 3]].concat());
    }
    // One line is longer than a block.
    text.extend("z".repeat(BLOCK as usize * 2).as_bytes());
    assert!(text.len() as u64 > 4 * BLOCK);
    let expected = LineIndex::of(&text);
    let store = InMemory::from_iter([("a.jsonl", text)]);
    let index = LineIndex::scan(&store, "a.jsonl").await.unwrap();
    assert_eq!((index.starts, index.gaps), (expected.starts, expected.gaps));
}
