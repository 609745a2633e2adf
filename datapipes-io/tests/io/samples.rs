use datapipes::{Context, Error, ErrorKind, Graph, Hints, Item, Items, Origin, Pipe, Result};
use datapipes_io::{File, Sample, Samples, Untar, prelude::*};

use crate::{all, apply, kinds, on_workers, parts, tar_of};

/// A pipe that opens archives and groups their members, both in one segment.
#[derive(Default)]
struct UntarSamples(Untar, Samples);

impl Pipe<File> for UntarSamples {
    type Out = Sample;

    fn apply(&self, input: Items<File>, cx: &Context) -> Items<Sample> {
        self.1.apply(self.0.apply(input, cx), cx)
    }
    fn hints(&self) -> Hints {
        Hints::shardable()
    }
}

fn archive(names: &[&str]) -> File {
    let members: Vec<_> = names.iter().map(|name| (*name, name.as_bytes())).collect();
    File::new("x.tar", tar_of(&members))
}

fn run(names: &[&str]) -> (Vec<Sample>, Vec<Error>) {
    parts(apply(&UntarSamples::default(), vec![archive(names)]))
}

/// Formats samples as `key: suffix suffix`.
fn shown(samples: &[Sample]) -> Vec<String> {
    let show = |sample: &Sample| {
        sample
            .fields()
            .map(|(name, _)| format!(" {name}"))
            .collect::<String>()
    };
    samples
        .iter()
        .map(|sample| format!("{}:{}", sample.key(), show(sample)))
        .collect()
}

#[test]
fn row_95_the_reference_table() {
    let (samples, errors) = run(&[
        "a/b.seg.png",
        "./x.jpg",
        "a.b/c",
        "a/.b.jpg",
        ".b.jpg",
        "a/b.",
        "__x__.json",
        "__x__",
        "__x__/y.json",
        "d/__x__/y.json",
        "A.JPG",
        "y.__key__",
    ]);
    let expected = [
        "a/b: seg.png",
        "x: jpg",
        "a/: b.jpg",
        "a/b: ",
        "__x__: json",
        "d/__x__/y: json",
        "A: jpg",
        "y:",
    ];
    let found = shown(&samples);
    // The archive's writer turns `./x.jpg` into `x.jpg`; such a key is tested with the splitting of
    // names.
    assert_eq!(found, expected);
    assert_eq!(
        errors[0].to_string(),
        "in0/y.__key__: corrupt: \"y.__key__\" is a second \"__key__\" of its sample, which has no field yet"
    );
    assert_eq!(errors.len(), 1);
}

#[test]
fn row_95_only_neighbours_belong_together() {
    let (samples, _) = run(&["a.jpg", "a.cls", "b.jpg", "a.txt"]);
    assert_eq!(shown(&samples), ["a: jpg cls", "b: jpg", "a: txt"]);
}

#[test]
fn row_95_what_is_ignored_does_not_part_neighbours() {
    let (samples, _) = run(&["a.jpg", "README", "__meta__/x.y", "a.cls"]);
    assert_eq!(shown(&samples), ["a: jpg cls"]);
}

#[test]
fn row_95_a_sample_never_spans_two_archives() {
    let input = vec![archive(&["a.jpg"]), archive(&["a.cls", "b.jpg"])];
    let (samples, _) = parts(apply(&UntarSamples::default(), input));
    assert_eq!(shown(&samples), ["a: jpg", "a: cls", "b: jpg"]);
}

#[test]
fn row_95_a_duplicate_is_an_error_and_the_sample_keeps_the_first() {
    let (samples, errors) = run(&["a.jpg", "a.JPG", "a.cls"]);
    assert_eq!(shown(&samples), ["a: jpg cls"]);
    assert_eq!(samples[0].get("jpg").unwrap(), "a.jpg");
    let expected = "in0/a.JPG: corrupt: \"a.JPG\" is a second \"jpg\" of its sample, which has \"jpg\" already";
    assert_eq!(errors[0].to_string(), expected);
    let pipe = UntarSamples(Untar::new(), Samples::new().keep_case());
    let (samples, errors) = parts(apply(&pipe, vec![archive(&["a.jpg", "a.JPG"])]));
    assert_eq!(
        (shown(&samples), errors.len()),
        (vec!["a: jpg JPG".to_owned()], 0)
    );
}

#[test]
fn row_95_a_filter_leaves_fields_out_and_samples_in() {
    let pipe = UntarSamples(Untar::new(), Samples::new().only(["cls"]));
    let (samples, errors) = parts(apply(
        &pipe,
        vec![archive(&["a.jpg", "a.cls", "b.jpg", "b.JPG"])],
    ));
    assert_eq!(
        (shown(&samples), errors.len()),
        (vec!["a: cls".to_owned(), "b:".to_owned()], 0)
    );
}

#[test]
fn row_95_bad_samples_are_left_out() {
    let members: [(&str, &[u8]); 4] = [
        ("a.jpg", b"1"),
        ("a.__bad__", b"1"),
        ("b.jpg", b"1"),
        ("b.__bad__", b""),
    ];
    let (samples, _) = parts(apply(
        &UntarSamples::default(),
        vec![File::new("x.tar", tar_of(&members))],
    ));
    assert_eq!(shown(&samples), ["b: jpg __bad__"]);
}

#[test]
fn a_sample_is_not_given_without_the_member_that_failed() {
    // The cut is in `b.cls`: `a` is whole, `b` is not, and the next archive starts a new sample.
    let cut = archive(&["a.jpg", "a.cls", "b.jpg", "b.cls"]);
    let cut = File::new("cut.tar", cut.data.slice(..7 * 512 + 1));
    let (samples, errors) = parts(apply(
        &UntarSamples::default(),
        vec![cut, archive(&["b.cls"])],
    ));
    assert_eq!(
        (shown(&samples), kinds(&errors)),
        (
            vec!["a: jpg cls".to_owned(), "b: cls".to_owned()],
            vec![ErrorKind::Truncated]
        )
    );

    let archive = Origin::root(0, 0);
    let file = |index, name: &str| {
        Ok(Item::new(
            File::new(name, "1"),
            archive.child(index).named(name),
        ))
    };
    let refused = Error::unsupported("sparse").of(&archive.child(2).named("b.jpg"));
    let input = [
        file(0, "a.jpg"),
        file(1, "a.cls"),
        Err(refused),
        file(3, "b.cls"),
        file(4, "c.cls"),
    ];
    let (samples, errors) = parts(all(
        Samples::new().apply(Items::from_results(input), &Context::default())
    ));
    assert_eq!(
        (shown(&samples), errors.len()),
        (vec!["a: jpg cls".to_owned(), "c: cls".to_owned()], 1)
    );
}

#[test]
fn an_error_elsewhere_costs_no_sample() {
    let first = Origin::root(0, 0);
    let file = |index, name: &str| {
        Ok(Item::new(
            File::new(name, "1"),
            first.child(index).named(name),
        ))
    };
    let elsewhere = Error::not_found("gone").of(&Origin::root(0, 1));
    let input = [file(0, "a.jpg"), file(1, "a.cls"), Err(elsewhere)];
    let items = all(Samples::new().apply(Items::from_results(input), &Context::default()));
    let order: Vec<_> = items.iter().map(Result::is_ok).collect();
    assert_eq!(order, [true, false]);
}

#[test]
fn origins_are_those_of_the_first_member_named_by_the_key() {
    let items = apply(
        &UntarSamples::default(),
        vec![archive(&["d/a.jpg", "d/a.cls", "d/b.jpg"])],
    );
    let origins: Vec<_> = items
        .into_iter()
        .map(|item| item.unwrap().origin().clone())
        .collect();
    assert_eq!(
        origins.iter().map(ToString::to_string).collect::<Vec<_>>(),
        ["in0/d/a", "in0/d/b"]
    );
    assert_eq!((origins[0].index(), origins[1].index()), (0, 2));
}

#[test]
fn both_ways_give_the_same_for_any_number_of_workers() {
    let archives: Vec<_> = (0..12)
        .map(|k| {
            let names: Vec<_> = (0..40)
                .flat_map(|n| [format!("{k}/{n}.jpg"), format!("{k}/{n}.cls")])
                .collect();
            archive(&names.iter().map(String::as_str).collect::<Vec<_>>())
        })
        .collect();
    let graph = Graph::from_vec(archives);
    let expected = graph.clone().untar().samples().collect().unwrap();
    assert_eq!(expected.len(), 480);
    assert_eq!(graph.clone().untar().samples().collect().unwrap(), expected);
    assert_eq!(on_workers(graph.clone().untar().samples()), expected);
    assert_eq!(on_workers(graph.untar().samples()), expected);
}

#[test]
fn fields_are_slices_of_the_archive() {
    let file = archive(&["a.jpg", "a.cls"]);
    let range = file.data.as_ptr_range();
    let (samples, _) = parts(apply(&UntarSamples::default(), vec![file]));
    assert!(
        samples[0]
            .fields()
            .all(|(_, data)| range.contains(&data.as_ptr()))
    );
}

#[test]
fn row_107_errors_of_a_field_name_key_and_place() {
    let sample = Sample::new("k")
        .with("cls", "x7")
        .with("txt", b"ab\xff".to_vec())
        .with("bom", "\u{feff}5 \n");
    assert_eq!(sample.parse::<u8>("bom").unwrap(), 5);
    let error = sample.parse::<u8>("cls").unwrap_err().to_string();
    assert_eq!(
        error,
        "corrupt: field \"cls\" of sample \"k\": invalid digit found in string"
    );
    assert!(
        sample
            .text("txt")
            .unwrap_err()
            .to_string()
            .contains("from index 2")
    );
    assert_eq!(
        Sample::new("k").get("a").unwrap_err().kind(),
        ErrorKind::NotFound
    );
    assert_eq!(
        format!("{sample:?}"),
        "Sample(\"k\", cls: 2 bytes, txt: 3 bytes, bom: 6 bytes)"
    );
}

/// Archives from memory have no names by which their members could be told from plain files.
#[test]
fn archives_without_a_name_keep_their_samples_apart() {
    let archives = vec![archive(&["meta.json", "image.jpg"]); 3];
    let pictures = Graph::from_vec(archives)
        .untar()
        .filter(|file| file.name.ends_with(".jpg"));
    let samples = pictures.samples().collect().unwrap();
    assert_eq!(samples.len(), 3);
}
