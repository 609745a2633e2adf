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

/// Returns a progress bar for so many files of a folder that are made there. Where nobody would see it, a
/// line says what is done, if the folder does not exist yet.
pub fn making(folder: &std::path::Path, files: u64, what: &str) -> indicatif::ProgressBar {
    let message = format!("making {}", folder.display());
    let bar = indicatif::ProgressBar::new(files);
    if bar.is_hidden() && !folder.exists() {
        eprintln!("{message}: {files} {what}");
    }
    let template = format!("{{msg}} {{wide_bar}} {{pos}}/{{len}} {what}, {{per_sec}}");
    bar.with_style(bar_style(&template)).with_message(message)
}

/// Returns a style for progress bars.
pub fn bar_style(template: &str) -> indicatif::ProgressStyle {
    indicatif::ProgressStyle::with_template(template)
        .expect("a right template")
        .progress_chars("━╸ ")
}
