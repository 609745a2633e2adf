//! Child processes: the call that a program needs to run parts of a graph in processes of their
//! own.
//!
//! A part that [`Graph::in_processes`](crate::Graph::in_processes) runs in processes of its own
//! runs in children of this process, which are the same executable, started again. The program
//! therefore has to find out that it is a child before it does anything else:
//!
//! ```
//! # #[expect(clippy::needless_doctest_main, reason = "it is about `main`")]
//! fn main() {
//!     datapipes::worker::init();
//!     // everything else
//! }
//! ```
//!
//! Tests have no `main` of their own; [`before_main!`](crate::before_main) does the same for them.

// The code that starts the children, and does their work again when one dies, is in `run/child/`.

/// Runs its part of the graph if this process was started as a child, and then does not return.
/// Otherwise it returns at once, and children can be started from then on.
///
/// The call has to be the first line of `main`: each child repeats everything before it. Until the
/// call, standard input and output of a child are its queues, so a `println!` ends the child;
/// afterwards, printed lines go to the parent's log, and standard input is empty. A child has no
/// arguments, and nothing that `main` made: no statics, threads or subscriber. In a program without
/// this call, a loader whose graph has a part in processes does not build.
///
/// If the variable `DATAPIPES_WORKER` has the address of a trainer (`tcp://HOST:PORT`, or with
/// feature `remote-tls` `tls://HOST:PORT`), this process works for it until it is told to end, and
/// does not return either; see `Graph::on_workers` (feature `remote`).
///
/// A child works in the place of a worker, hence the name of the module and of `DATAPIPES_WORKER`.
/// Elsewhere `workers` are the threads of [`Builder::workers`](crate::loader::Builder::workers),
/// which do not need this call, or, in `Graph::on_workers`, processes of other machines.
///
/// On anything but Linux it does nothing; there, parts in processes run on threads.
pub fn init() {
    #[cfg(target_os = "linux")]
    crate::run::child::init();
}

/// Does the same as [`init`], before `main`: for test executables, which have no `main` of their
/// own.
///
/// Use it once, anywhere in the crate, outside of functions; it places a pointer where the loader
/// of the executable finds it. In a child the whole part runs at that point, before `main`: values
/// that constructors of other libraries fill may be empty, and `SIGPIPE` ends the process. Use it
/// in tests only; a program calls `init`.
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
            // this is a function of that type.
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

    /// The test executable never called `init`.
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
        // Threads do not need the call.
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
