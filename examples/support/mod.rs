//! Code that the examples share.
#![allow(dead_code, reason = "each example uses a part of it")]

pub mod archive;
pub mod args;
pub mod digits;
pub mod images;
pub mod link;
pub mod png;
pub mod shapes;
pub mod shards;
#[cfg(feature = "text")]
pub mod texts;
pub mod trace;
pub mod usage;

/// Prints the error of a program that failed, and returns its exit code.
pub fn exit_code(result: Result<(), datapipes::BoxError>) -> std::process::ExitCode {
    match result {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}

/// Returns a style for progress bars.
pub fn bar_style(template: &str) -> indicatif::ProgressStyle {
    indicatif::ProgressStyle::with_template(template)
        .expect("a right template")
        .progress_chars("━╸ ")
}
