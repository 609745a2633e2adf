//! Parts of a graph in processes of their own: what a program has to do for them.
//!
//! A part that was put there by [`Graph::in_processes`](crate::Graph::in_processes) runs in
//! children of this process, which are the same executable, started again. So the program has to
//! notice that it is a child, before it does anything else:
//!
//! ```
//! # #[expect(clippy::needless_doctest_main, reason = "it is about `main`")]
//! fn main() {
//!     datapipes::worker::init();
//!     // everything else
//! }
//! ```
//!
//! In tests, whose `main` is not one's own, [`before_main!`](crate::before_main) does the same.

/// Turns this process into a worker, if it was started as one; then it does not return. Otherwise
/// it returns at once, and children can be started from then on.
///
/// It has to be the first line of `main`: what stands before it, each child does, too. Until then
/// standard input and output of a child are its queues, so a `println!` before it ends the child;
/// after it, what is printed goes to the parent's log, and standard input is empty. A child has no
/// arguments, and nothing that `main` did: no statics, threads or subscriber. A loader whose graph
/// has a part in processes, in a program that did not call this, does not build.
///
/// (These workers are processes. The threads of
/// [`Builder::workers`](crate::loader::Builder::workers) need no such line.)
///
/// On anything but Linux it does nothing; such parts run on threads there.
pub fn init() {
    #[cfg(target_os = "linux")]
    crate::run::worker::init();
}

/// Does what [`init`] does, before `main`: for test executables, whose `main` is not one's own.
///
/// Once, anywhere in the crate, outside of functions; it places a pointer where the loader of the
/// executable finds it. In a child the whole part runs there, before `main`: what constructors of
/// other libraries fill may be empty, and `SIGPIPE` ends the process. So it is for tests; a program
/// calls `init`.
///
/// ```
/// datapipes::before_main!();
/// ```
#[macro_export]
macro_rules! before_main {
    () => {
        #[cfg(target_os = "linux")]
        const _: () = {
            extern "C" fn init() {
                $crate::worker::init();
            }
            // SAFETY: functions of this section are called once, before `main`, by the C library;
            // this is such a function.
            #[used]
            #[unsafe(link_section = ".init_array")]
            static INIT: extern "C" fn() = init;
        };
    };
}

#[cfg(test)]
#[cfg(target_os = "linux")]
mod tests {
    use crate::{DataLoader, Graph};

    /// This executable of tests is such a program.
    #[test]
    fn row_128_a_program_that_forgot_it_builds_no_loader_with_processes() {
        let graph = Graph::range(0..3)
            .in_processes(1, |numbers| numbers.map(|n| n))
            .named("decode");
        let said = DataLoader::builder(graph).build().unwrap_err().to_string();
        assert!(
            said.contains("decode: runs in processes of its own"),
            "{said}"
        );
        assert!(
            said.contains("`datapipes::worker::init()` has to be the first line of `main`"),
            "{said}"
        );
        assert!(said.contains("`datapipes::before_main!()`"), "{said}");
        // On threads nothing is missing.
        let graph = Graph::range(0..3).in_processes(1, |numbers| numbers.map(|n| n));
        let loader = DataLoader::builder(graph).workers(0).build().unwrap();
        assert_eq!(
            loader
                .epoch(0)
                .blocking()
                .collect::<Result<Vec<_>, _>>()
                .unwrap(),
            [0, 1, 2]
        );
    }
}
