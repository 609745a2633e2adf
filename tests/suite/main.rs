//! Tests of the promises of the library, a module for each promise.

mod compiling;
#[cfg(any(
    feature = "http",
    feature = "cloud",
    feature = "sqlite",
    feature = "cassandra"
))]
mod far;
mod faults;
mod faults_table;
mod figures;
mod golden;
mod graphs;
mod heard;
mod in_flight;
mod iterating;
mod kit;
mod laws;
#[cfg(target_os = "linux")]
mod memory;
mod messages;
mod own_pipes;
#[cfg(target_os = "linux")]
mod processes;
mod resume;
mod review;
mod rows;
mod runtimes;
mod samples;
mod shuffles;
mod structure;
mod trace;
mod user_pipes;

// Parts of graphs run in children of this executable.
datapipes::before_main!();
