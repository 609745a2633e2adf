//! Tests of ranks.

use super::*;

fn told(vars: &[(&str, &str)]) -> Result<(usize, usize), String> {
    let lookup = |name: &str| Some(vars.iter().find(|var| var.0 == name)?.1.to_owned());
    Rank::from_vars(lookup)
        .map(|rank| (rank.index, rank.world))
        .map_err(|error| error.to_string())
}

#[test]
fn each_launcher_tells_the_rank() {
    assert_eq!(told(&[]), Ok((0, 1)));
    assert_eq!(told(&[("RANK", "3"), ("WORLD_SIZE", " 4\n")]), Ok((3, 4)));
    assert_eq!(
        told(&[("SLURM_PROCID", "1"), ("SLURM_NTASKS", "2")]),
        Ok((1, 2))
    );
    assert_eq!(
        told(&[
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "8"),
            ("SLURM_STEP_NUM_TASKS", "2")
        ]),
        Ok((1, 2))
    );
    assert_eq!(
        told(&[("OMPI_COMM_WORLD_RANK", "0"), ("OMPI_COMM_WORLD_SIZE", "2")]),
        Ok((0, 2))
    );
    assert_eq!(told(&[("PMI_RANK", "5"), ("PMI_SIZE", "6")]), Ok((5, 6)));
    assert_eq!(
        told(&[("JOB_COMPLETION_INDEX", "2"), ("JOB_COMPLETIONS", "3")]),
        Ok((2, 3))
    );
    assert_eq!(
        told(&[("JOB_COMPLETION_INDEX", "2"), ("WORLD_SIZE", "3")]),
        Ok((2, 3))
    );
    // A number of ranks of 1 alone, and empty variables, are not contradictory.
    assert_eq!(told(&[("SLURM_NTASKS", "1")]), Ok((0, 1)));
    assert_eq!(told(&[("RANK", ""), ("WORLD_SIZE", "")]), Ok((0, 1)));
}

#[test]
fn a_launcher_inside_another_counts_if_they_agree() {
    let torchrun = |rank| {
        [
            ("RANK", rank),
            ("WORLD_SIZE", "8"),
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "2"),
        ]
    };
    assert_eq!(told(&torchrun("5")), Ok((5, 8)));
    assert_eq!(
        told(&torchrun("3")).unwrap_err(),
        "wrong configuration: launchers contradict each other: torchrun says RANK=3 WORLD_SIZE=8, and SLURM says SLURM_PROCID=1 \
         SLURM_NTASKS=2"
    );
    assert_eq!(
        told(&[
            ("RANK", "5"),
            ("WORLD_SIZE", "8"),
            ("JOB_COMPLETION_INDEX", "5"),
            ("JOB_COMPLETIONS", "8")
        ]),
        Ok((5, 8))
    );
    // Pods whose number is not set.
    assert_eq!(
        told(&[
            ("RANK", "9"),
            ("WORLD_SIZE", "16"),
            ("JOB_COMPLETION_INDEX", "1")
        ]),
        Ok((9, 16))
    );
    // A number alone, next to a launcher that sets both.
    assert_eq!(
        told(&[
            ("WORLD_SIZE", "4"),
            ("SLURM_PROCID", "1"),
            ("SLURM_NTASKS", "4")
        ]),
        Ok((1, 4))
    );
    let error = told(&[
        ("WORLD_SIZE", "3"),
        ("SLURM_PROCID", "1"),
        ("SLURM_NTASKS", "4"),
    ])
    .unwrap_err();
    assert!(
        error.ends_with("SLURM says SLURM_PROCID=1 SLURM_NTASKS=4, and torchrun says WORLD_SIZE=3"),
        "{error}"
    );
}

#[test]
fn what_is_half_or_wrong_is_said_with_names_and_values() {
    let cases: [(&[(&str, &str)], &str); 8] = [
        (
            &[("RANK", "1")],
            "RANK is 1, and WORLD_SIZE is not set: how many are there?",
        ),
        (
            &[("WORLD_SIZE", "2")],
            "WORLD_SIZE is 2, and RANK is not set: which of them is this?",
        ),
        (
            &[("JOB_COMPLETION_INDEX", "0")],
            "JOB_COMPLETION_INDEX is 0, and JOB_COMPLETIONS or WORLD_SIZE is not set: how many are there?",
        ),
        (
            &[("RANK", "-1"), ("WORLD_SIZE", "2")],
            "RANK is \"-1\", which is no number",
        ),
        (
            &[("RANK", "1"), ("WORLD_SIZE", "two")],
            "WORLD_SIZE is \"two\", which is no number",
        ),
        (
            &[("RANK", "99999999999999999999"), ("WORLD_SIZE", "2")],
            "RANK is \"99999999999999999999\", which is no number",
        ),
        (
            &[("RANK", "2"), ("WORLD_SIZE", "2")],
            "torchrun says RANK=2 WORLD_SIZE=2: there is no such rank, they are numbered from 0",
        ),
        (
            &[("PMI_RANK", "0"), ("PMI_SIZE", "0")],
            "PMI_SIZE is 0: there is no rank",
        ),
    ];
    for (vars, expected) in cases {
        assert_eq!(
            told(vars).unwrap_err(),
            format!("wrong configuration: {expected}")
        );
    }
}
