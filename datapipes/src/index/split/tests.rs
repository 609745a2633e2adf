//! Guarantees of splits, on made-up data sets.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;
use crate::ErrorKind;

const PARTS: [(&str, f64); 3] = [("train", 0.8), ("val", 0.1), ("test", 0.1)];

fn class_counts(splits: &Splits<u64>, part: usize) -> &[usize] {
    &splits.parts()[part].classes
}

#[test]
fn golden_splits() {
    let samples = || (0..30u64).map(|n| SplitSample::new(n).class(n % 4 / 3));
    let parts = |splits: &Splits<u64>| {
        splits
            .parts()
            .iter()
            .map(|part| part.keys.clone())
            .collect::<Vec<_>>()
    };
    let random = Splitter::fractions(PARTS).seed(7).split(samples()).unwrap();
    assert_eq!(parts(&random)[1..], [[1, 3, 16], [0, 6, 19]]);
    let equal = Splitter::fractions(PARTS)
        .equal_classes()
        .seed(7)
        .split(samples())
        .unwrap();
    assert_eq!(
        parts(&equal),
        [
            &[2, 3, 5, 7, 11, 12, 14, 15, 23, 27, 29][..],
            &[19, 25],
            &[18]
        ]
    );
    let grouped = samples().map(|sample| SplitSample {
        entity: Some((sample.key / 3).to_string()),
        ..sample
    });
    let grouped = Splitter::k_fold(3)
        .balance_classes()
        .seed(7)
        .split(grouped)
        .unwrap();
    let folds = [
        &[0, 1, 2, 6, 7, 8, 18, 19, 20, 21, 22, 23][..],
        &[3, 4, 5, 12, 13, 14, 15, 16, 17],
        &[9, 10, 11, 24, 25, 26, 27, 28, 29],
    ];
    assert_eq!(parts(&grouped), folds);
    assert_eq!(grouped.digest, "848174268b38f3c2c7964870d9620757");
}

#[test]
fn classes_are_balanced_exactly_without_entities() {
    // 90 % of one class, 9 % and 1 % of the others.
    let class = |n: u64| {
        if n.is_multiple_of(100) {
            "rare"
        } else if n % 11 == 1 {
            "some"
        } else {
            "most"
        }
    };
    let samples = (0..5000).map(|n| SplitSample::new(n).class(class(n)));
    let splits = Splitter::fractions(PARTS)
        .balance_classes()
        .split(samples)
        .unwrap();
    let whole: Vec<usize> = (0..3)
        .map(|class| (0..3).map(|part| class_counts(&splits, part)[class]).sum())
        .collect();
    for (part, (_, fraction)) in PARTS.iter().enumerate() {
        for (class, &whole) in whole.iter().enumerate() {
            let wanted = whole as f64 * fraction;
            let count = class_counts(&splits, part)[class] as f64;
            assert!(
                (count - wanted).abs() < 1.0,
                "{count} of {wanted} in part {part}:\n{splits}"
            );
        }
    }
    assert!(splits.warnings().is_empty());
}

#[test]
fn many_small_classes_do_not_empty_the_small_parts() {
    let samples = (0..100).map(|n| SplitSample::new(n).class(n));
    let splits = Splitter::fractions(PARTS)
        .balance_classes()
        .split(samples)
        .unwrap();
    let sizes: Vec<usize> = splits.parts().iter().map(|part| part.keys.len()).collect();
    assert_eq!(sizes, [80, 10, 10]);
    let warnings = splits.warnings();
    assert!(
        warnings[1].starts_with("val has no sample of class 0, 1, ")
            && warnings[1].ends_with(" and 82 more"),
        "{warnings:?}"
    );
}

#[test]
fn classes_are_made_equal_or_of_a_given_mix() {
    let class = |n: u64| {
        if n < 700 {
            0
        } else if n < 950 {
            1
        } else {
            2
        }
    };
    let samples = || {
        (0..1000)
            .map(|n| SplitSample::new(n).class(class(n)))
            .chain([SplitSample::new(1000)])
    };
    let parts = || Splitter::fractions([("a", 0.5), ("b", 0.5)]);
    let of = |splitter: Splitter| {
        let splits = splitter.split(samples()).unwrap();
        let counts: Vec<Vec<usize>> = splits
            .parts()
            .iter()
            .map(|part| part.classes.clone())
            .collect();
        (counts, splits.left_out().len())
    };
    assert_eq!(
        of(parts().equal_classes()),
        (vec![vec![25, 25, 25, 0]; 2], 851)
    );
    assert_eq!(
        of(parts().class_mix([(0, 0.6), (1, 0.3), (2, 0.1)])),
        (vec![vec![150, 75, 25, 0]; 2], 501)
    );
    assert_eq!(
        of(parts().class_mix([("1", 1.0)])),
        (vec![vec![0, 125, 0, 0]; 2], 751)
    );
    assert_eq!(of(parts().max_per_class(100).balance_classes()).1, 750);
    let (counts, left_out) = of(parts().equal_classes().max_per_class(10));
    assert_eq!((counts, left_out), (vec![vec![5, 5, 5, 0]; 2], 971));
    for wrong in [
        vec![(9, 1.0)],
        vec![(0, f64::NAN)],
        vec![(0, -1.0)],
        vec![(0, 0.0)],
    ] {
        assert_eq!(
            parts()
                .class_mix(wrong)
                .split(samples())
                .unwrap_err()
                .kind(),
            ErrorKind::Config
        );
    }
}

#[test]
fn fractions_below_one_leave_samples_out() {
    let splits = Splitter::fractions([("a", 0.25)])
        .split((0..100).map(SplitSample::new))
        .unwrap();
    assert_eq!(
        (splits.keys("a").unwrap().len(), splits.left_out().len()),
        (25, 75)
    );
    let grouped = (0..100).map(|n| SplitSample::new(n).entity(n / 5));
    let splits = Splitter::fractions([("a", 0.25)]).split(grouped).unwrap();
    assert_eq!(
        (splits.keys("a").unwrap().len(), splits.left_out().len()),
        (25, 75)
    );
}

#[test]
fn folds_hold_back_each_sample_once() {
    let samples = (0..103).map(|n| SplitSample::new(n).entity(n / 4).class(n % 3));
    let splits = Splitter::k_fold(5)
        .balance_classes()
        .split(samples)
        .unwrap();
    let mut seen = Vec::new();
    for fold in 0..5 {
        let (train, validate) = splits.fold(fold).unwrap();
        assert_eq!(train.len() + validate.len(), 103);
        let entities = |keys: &[u64]| keys.iter().map(|n| n / 4).collect::<BTreeSet<_>>();
        assert!(entities(&train).is_disjoint(&entities(validate)));
        assert!((17..=24).contains(&validate.len()), "{splits}");
        seen.extend_from_slice(validate);
    }
    seen.sort_unstable();
    assert_eq!(seen, (0..103).collect::<Vec<_>>());
    assert_eq!(splits.fold(5).unwrap_err().kind(), ErrorKind::NotFound);
}

#[test]
fn few_entities_leave_no_part_empty() {
    let samples = || (0..30).map(|n| SplitSample::new(n).entity(n / 10));
    let splits = Splitter::fractions(PARTS).split(samples()).unwrap();
    assert!(
        splits.parts().iter().all(|part| part.entities == 1),
        "{splits}"
    );
    let few = Splitter::fractions(PARTS)
        .split((0..3).map(SplitSample::new))
        .unwrap();
    assert!(few.parts().iter().all(|part| part.keys.len() == 1));
    let error = Splitter::k_fold(4).split(samples()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Config);
    assert!(error.to_string().contains("4 parts of 3"), "{error}");
    assert!(
        Splitter::k_fold(1)
            .split(Vec::<SplitSample<u64>>::new())
            .is_err()
    );
}

#[test]
fn wrong_settings_are_refused() {
    let wrong = [
        Splitter::fractions([("a", 0.7), ("b", 0.4)]),
        Splitter::fractions([("a", 0.0)]),
        Splitter::fractions([("a", -0.5), ("b", 1.0)]),
        Splitter::fractions([("a", f64::NAN)]),
        Splitter::fractions([("a", 0.5), ("a", 0.5)]),
        Splitter::fractions([("a", 0.0); 0]),
        Splitter::k_fold(0),
    ];
    for splitter in wrong {
        let error = splitter.split((0..10).map(SplitSample::new)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config, "{splitter:?}: {error}");
    }
    // Thirds and tenths are not exact as floats, and still accepted.
    assert!(
        Splitter::fractions([("a", 0.1), ("b", 0.2), ("c", 0.7)])
            .split((0..10).map(SplitSample::new))
            .is_ok()
    );
    let twice = Splitter::k_fold(2)
        .split([1, 2, 1].map(SplitSample::new))
        .unwrap_err();
    assert!(
        twice.to_string().contains("two samples have the key 1"),
        "{twice}"
    );
}

#[test]
fn the_table_says_what_each_part_holds() {
    let samples = (0..1000).map(|n| SplitSample::new(n).class(n % 4 / 3).entity(n / 10));
    let splits = Splitter::fractions([("train", 0.8), ("test", 0.1)])
        .balance_classes()
        .class_column("cancer")
        .split(samples);
    let table = splits.unwrap().to_string();
    let wanted = "\
part              samples  entities            cancer 0            cancer 1
train  800  80.0 % (+0.0)        80  600  75.0 % (+0.0)  200  25.0 % (+0.0)
test   100  10.0 % (+0.0)        10   75  75.0 % (+0.0)   25  25.0 % (+0.0)
left out: 100
";
    assert_eq!(table, wanted, "\n{table}");
    let many = Splitter::k_fold(2)
        .split((0..40).map(|n| SplitSample::new(n).class(n)))
        .unwrap()
        .to_string();
    assert!(
        many.contains("and 34 more classes\n")
            && many.contains("warning: fold 0 has no sample of class"),
        "{many}"
    );
}

#[test]
fn classes_are_ordered_as_numbers_are() {
    let classes = ["10", "9", "b", "a", "-1"];
    let samples = classes
        .iter()
        .enumerate()
        .map(|(n, class)| SplitSample::new(n).class(class));
    let splits = Splitter::k_fold(1)
        .split(samples.chain([SplitSample::new(9)]))
        .unwrap();
    let names: Vec<&str> = splits
        .classes()
        .iter()
        .map(|class| class.as_deref().unwrap_or("none"))
        .collect();
    assert_eq!(names, ["-1", "9", "10", "a", "b", "none"]);
}

#[test]
fn plain_data_gives_back_the_splits_or_says_what_is_wrong() {
    let samples = (0..50u64).map(|n| SplitSample::new(n).class(n % 3).entity(n / 2));
    let splits = Splitter::fractions(PARTS)
        .equal_classes()
        .group_by("patient")
        .split(samples)
        .unwrap();
    let record = splits.to_record();
    assert_eq!(Splits::from_record(record.clone()).unwrap(), splits);
    let damages: [fn(&mut Record); 6] = [
        |record| record.parts[0].keys[0] = "one".into(),
        |record| record.parts[0].keys[0] = record.parts[1].keys[0].clone(),
        |record| record.parts[0].classes[0] += 1,
        |record| record.classes.push(None),
        |record| record.left_out.push("50".into()),
        |record| record.digest.clear(),
    ];
    for (number, damage) in damages.into_iter().enumerate() {
        let mut record = record.clone();
        damage(&mut record);
        let error = Splits::<u64>::from_record(record).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt, "{number}: {error}");
    }
    let other: Vec<u64> = (2..51).collect();
    let error = splits.check_keys(&other).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed);
    assert!(
        error
            .to_string()
            .ends_with("2 of its samples are gone, 1 are new"),
        "{error}"
    );
    assert!(splits.check_keys(&(0..50).collect::<Vec<_>>()).is_ok());
}

fn parts() -> impl Strategy<Value = Vec<(String, f64)>> {
    let named = |shares: Vec<u32>, all: f64| {
        let sum: u32 = shares.iter().sum();
        shares
            .iter()
            .enumerate()
            .map(|(n, share)| (n.to_string(), all * f64::from(*share) / f64::from(sum)))
            .collect()
    };
    (
        prop::collection::vec(1..10u32, 1..5),
        prop_oneof![Just(1.0), Just(0.7)],
    )
        .prop_map(move |(shares, all)| named(shares, all))
}

#[test]
fn a_stable_split_keeps_samples_in_their_parts_when_others_come() {
    let splitter = Splitter::fractions(PARTS).seed(7).stable();
    let of = |patients: u64| {
        let samples = (0..patients * 3).map(|n| SplitSample::new(n).class(n % 2).entity(n / 3));
        splitter.split(samples).unwrap()
    };
    let (before, after) = (of(1000), of(1100));
    for (before, after) in before.parts().iter().zip(after.parts()) {
        let old: Vec<u64> = after
            .keys
            .iter()
            .copied()
            .filter(|&key| key < 3000)
            .collect();
        assert_eq!(before.keys, old);
        let share = after.keys.len() as f64 / 3300.0;
        assert!((share - after.fraction).abs() < 0.03, "{share}");
    }
    assert!(after.left_out().is_empty());

    // A larger part takes samples from those after it alone.
    let of = |val| Splitter::fractions([("train", 0.5), ("val", val)]).stable();
    let samples = || (0..1000u64).map(SplitSample::new);
    let (few, more) = (
        of(0.1).split(samples()).unwrap(),
        of(0.2).split(samples()).unwrap(),
    );
    assert_eq!(few.keys("train").unwrap(), more.keys("train").unwrap());
    assert_eq!(few.keys("val").unwrap()[..5], [4, 23, 45, 48, 52]);

    // Those that a limit keeps are divided as the others.
    let samples = (0..10_000u64).map(|n| SplitSample::new(n).class(n % 2));
    let limited = of(0.5).max_per_class(500).split(samples).unwrap();
    assert!(limited.keys("val").unwrap().len().abs_diff(500) < 60);
}

proptest! {
    #[test]
    fn every_sample_is_in_one_place_and_entities_stay_whole(
        entities in prop::collection::vec(0..40u8, 5..300),
        classes in prop::collection::vec(prop::option::weighted(0.9, 0..4u8), 300),
        parts in parts(),
        balanced in any::<bool>(),
        single in any::<bool>(),
        seed in any::<u64>(),
    ) {
        let mut samples = Vec::new();
        for (key, &entity) in entities.iter().enumerate() {
            let mut sample = SplitSample::new(key as u64);
            sample.class = classes[key].map(|class| class.to_string());
            if !single {
                sample.entity = Some(entity.to_string());
            }
            samples.push(sample);
        }
        let mut splitter = Splitter::fractions(parts.clone()).seed(seed);
        if balanced {
            splitter = splitter.balance_classes();
        }
        let distinct = entities.iter().collect::<BTreeSet<_>>().len();
        let units = if single { samples.len() } else { distinct };
        let outcome = splitter.split(samples.clone());
        prop_assert_eq!(outcome.is_err(), units < parts.len());
        let Ok(splits) = outcome else { return Ok(()) };

        // The parts are disjoint and complete.
        let mut all: Vec<u64> = splits.parts().iter().flat_map(|part| part.keys.clone()).collect();
        all.extend_from_slice(splits.left_out());
        all.sort_unstable();
        prop_assert_eq!(all, (0..samples.len() as u64).collect::<Vec<_>>());
        prop_assert!(splits.parts().iter().all(|part| !part.keys.is_empty() && part.keys.is_sorted()));

        // The order of the samples does not matter.
        let mut turned = samples.clone();
        turned.reverse();
        turned.rotate_left(samples.len() / 3);
        prop_assert_eq!(&splitter.split(turned).unwrap(), &splits);

        // Entities stay whole, and are counted.
        let mut place = BTreeMap::new();
        let left_out = splits.left_out();
        let places = splits.parts().iter().map(|part| &*part.keys).chain([left_out]).enumerate();
        let mut largest = 1;
        if !single {
            for (at, keys) in places {
                let mut count: BTreeMap<u8, usize> = BTreeMap::new();
                keys.iter().for_each(|key| *count.entry(entities[*key as usize]).or_default() += 1);
                largest = largest.max(count.values().copied().max().unwrap_or(0));
                if let Some(part) = splits.parts().get(at) {
                    prop_assert_eq!(part.entities, count.len());
                }
                for entity in count.keys() {
                    prop_assert_eq!(*place.entry(*entity).or_insert(at), at, "entity {}", entity);
                }
            }
        }

        // Sizes are as asked for, within one entity, or within rounding.
        if !balanced || single {
            for part in splits.parts() {
                let off = part.keys.len() as f64 - part.fraction * samples.len() as f64;
                // A part that would be empty received a unit from a large part.
                let slack = if units < 6 * parts.len() { largest * parts.len() } else { largest };
                prop_assert!(off.abs() <= slack as f64 + 1e-6, "{} off, {} allowed:\n{}", off, slack, splits);
            }
        }
        // The counts of classes add up.
        for (part, keys) in splits.parts().iter().map(|part| (part, &part.keys)) {
            for (class, count) in splits.classes().iter().zip(&part.classes) {
                let of_class = |key: &&u64| samples[**key as usize].class == *class;
                prop_assert_eq!(keys.iter().filter(of_class).count(), *count);
            }
        }
    }

    #[test]
    fn classes_are_balanced_over_entities_where_that_is_possible(
        patients in prop::collection::vec((0..3usize, 1..6usize), 60..120),
        seed in any::<u64>(),
    ) {
        let mut samples = Vec::new();
        for (patient, &(class, scans)) in patients.iter().enumerate() {
            samples.extend((0..scans).map(|scan| SplitSample::new(patient * 10 + scan).class(class).entity(patient)));
        }
        let all = samples.len() as f64;
        let splits = Splitter::k_fold(3).balance_classes().seed(seed).split(samples).unwrap();
        for (class, _) in splits.classes().iter().enumerate() {
            let whole: usize = splits.parts().iter().map(|part| part.classes[class]).sum();
            for part in splits.parts() {
                let off = part.classes[class] as f64 - whole as f64 / 3.0;
                prop_assert!(off.abs() <= 5.0, "{} off:\n{}", off, splits);
                prop_assert!((part.keys.len() as f64 - all / 3.0).abs() <= 6.0, "{}", splits);
            }
        }
    }
}
