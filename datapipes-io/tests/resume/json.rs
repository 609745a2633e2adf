//! Checkpoints as JSON.

use datapipes::{Checkpoint, DataLoader, Graph, Uneven};
use serde_json::{Value, json};

use super::{begun, loader};

fn state() -> Checkpoint {
    let graph = Graph::range(0..200)
        .filter(|n| n % 5 != 0)
        .shuffle(9)
        .flat_map(|n| [n, n])
        .batch(4);
    begun(&loader(&graph, 0), 13).1
}

fn refused(value: &Value) -> String {
    let error = serde_json::from_value::<Checkpoint>(value.clone()).expect_err("it is no state");
    // The text is parsed too: there the version comes first or last.
    serde_json::from_str::<Checkpoint>(&value.to_string()).expect_err("it is no state");
    error.to_string()
}

/// Makes a checkpoint that is merged from two ranks.
fn merged() -> Checkpoint {
    let of = |rank| {
        let graph = Graph::range(0..40)
            .sharding_filter()
            .filter(|n| n % 5 != 0)
            .batch(4);
        let loader = DataLoader::builder(graph)
            .workers(0)
            .rank(rank, 2)
            .uneven(Uneven::Drop)
            .resumable();
        let mut epoch = loader.ranks_agree().build().unwrap().epoch(0).blocking();
        assert_eq!(epoch.by_ref().take(2).count(), 2);
        epoch.checkpoint().unwrap()
    };
    Checkpoint::merge(&[of(0), of(1)]).unwrap()
}

#[test]
fn a_state_goes_through_json() {
    goes_through(state());
}

#[test]
fn a_state_of_several_ranks_goes_through_json() {
    let mut value = serde_json::to_value(merged()).unwrap();
    assert_eq!(value["others"][0]["rank"], 1);
    goes_through(merged());
    value["others"][0]["delivered"] = json!(3);
    assert!(refused(&value).contains("its checksum is another"));
}

fn goes_through(state: Checkpoint) {
    for text in [
        serde_json::to_string(&state).unwrap(),
        serde_json::to_string_pretty(&state).unwrap(),
    ] {
        let again: Checkpoint = serde_json::from_str(&text).unwrap();
        assert!(again == state);
        assert_eq!(again.to_bytes(), state.to_bytes());
    }
    let value = serde_json::to_value(&state).unwrap();
    assert!(serde_json::from_value::<Checkpoint>(value).unwrap() == state);
}

/// A change of the JSON form needs a new version of checkpoints.
#[test]
fn the_form_in_json_is_pinned() {
    let graph = Graph::range(0..20).batch(3).named("batches");
    let (_, state) = begun(&loader(&graph, 0), 2);
    let value = serde_json::to_value(&state).unwrap();
    let check = value["check"].as_str().unwrap();
    assert_eq!(check.len(), 16);
    let bytes = state.to_bytes();
    let sum = u64::from_le_bytes(*bytes.last_chunk().unwrap());
    assert_eq!(u64::from_str_radix(check, 16).unwrap(), sum);
    for (key, known) in [
        ("version", json!(1)),
        ("seed", json!(11)),
        ("epoch", json!(1)),
        ("delivered", json!(2)),
        ("world", json!(1)),
    ] {
        assert_eq!(value[key], known, "{key}");
    }
    assert_eq!((value.get("finished"), value.get("skipped")), (None, None));
    assert_eq!(value["nodes"][0]["name"], "range");
    assert_eq!(value["nodes"][0]["settings"], "0..20");
    let (_, plain) = begun(&loader(&Graph::range(0..20), 0), 2);
    let plain = serde_json::to_value(&plain).unwrap();
    assert_eq!(plain["nodes"][0]["cursor"], json!({"outputs": [2]}));
    assert_eq!(value["nodes"][1]["name"], "batches");
    assert_eq!(value["nodes"][1]["inputs"], json!([0]));
    let finished = begun(&loader(&graph, 0), 99).1;
    assert_eq!(
        serde_json::to_value(&finished).unwrap()["finished"],
        json!(true)
    );
}

#[test]
fn row_120_a_changed_text_is_refused() {
    let text = serde_json::to_string(&state()).unwrap();
    // Each changed digit, and each changed letter of a name, is found by the checksum.
    let mut tried = 0;
    for at in 0..text.len() {
        let mut bytes = text.clone().into_bytes();
        bytes[at] = match bytes[at] {
            b'9' => b'1',
            digit @ b'0'..=b'8' => digit + 1,
            letter @ b'a'..=b'y' => letter + 1,
            _ => continue,
        };
        tried += 1;
        let changed = String::from_utf8(bytes).unwrap();
        assert!(
            serde_json::from_str::<Checkpoint>(&changed).is_err(),
            "{at}: {changed}"
        );
        assert!(
            serde_json::from_str::<Checkpoint>(&text[..at]).is_err(),
            "cut at {at}"
        );
    }
    assert!(tried > 100);
}

#[test]
fn row_120_another_version_and_other_fields_are_refused() {
    let value = serde_json::to_value(state()).unwrap();
    let with = |path: &str, new: Value| {
        let mut value = value.clone();
        let (parent, key) = path.rsplit_once('/').unwrap();
        value
            .pointer_mut(parent)
            .unwrap()
            .as_object_mut()
            .unwrap()
            .insert(key.to_owned(), new);
        value
    };
    let says = refused(&with("/version", json!(3)));
    assert!(
        says.contains("a checkpoint of version 3; this library reads versions 1 to 2"),
        "{says}"
    );
    for path in ["/new", "/nodes/0/new", "/nodes/2/cursor/new"] {
        assert!(
            refused(&with(path, json!(0))).contains("unknown field `new`"),
            "{path}"
        );
    }
    let says = refused(&with("/check", json!("0123456789abcdef")));
    assert!(says.contains("its checksum is another"), "{says}");
    assert!(
        refused(&with("/check", json!("012"))).contains("an even number of hexadecimal digits")
    );
    assert!(refused(&with("/check", json!("zz"))).contains("an even number of hexadecimal digits"));
    let says = refused(&with("/delivered", json!(1u64 << 62)));
    assert!(says.contains("its numbers contradict each other"), "{says}");
    refused(&with("/delivered", json!(-1)));
    refused(&with("/nodes/2/cursor", json!({})));
    let mut without = value.clone();
    without.as_object_mut().unwrap().remove("check");
    assert!(refused(&without).contains("its checksum is another"));
}
