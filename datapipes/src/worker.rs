//! Parts of a graph in processes of their own: what a program has to do for them.
//!
//! A part that was put there by [`Graph::in_processes`](crate::Graph::in_processes) runs in children of this process, which are the
//! same executable, started again. So the program has to notice that it is a child, before it does anything else:
//!
//! ```
//! fn main() {
//!     datapipes::worker::init();
//!     // everything else
//! }
//! ```
//!
//! In tests, whose `main` is not one's own, [`before_main!`](crate::before_main) does the same.

/// Turns this process into a worker, if it was started as one; then it does not return. Otherwise it returns at once, and children can be started
/// from then on.
///
/// It has to be the first line of `main`: what stands before it, each child does, too. A loader whose graph has a part in
/// processes, in a program that did not call this, does not build.
///
/// On anything but Linux it does nothing; such parts run on threads there.
pub fn init() {
    #[cfg(target_os = "linux")]
    crate::run::children::init();
}

/// Does what [`init`] does, before `main`: for test executables, whose `main` is not one's own.
///
/// Once, anywhere in the crate, outside of functions; it places a pointer where the loader of the executable finds it. (`init` reads the
/// environment and opens a file; both are allowed that early.)
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
            // SAFETY: functions of this section are called once, before `main`, by the C library; this is such a function.
            #[used]
            #[unsafe(link_section = ".init_array")]
            static INIT: extern "C" fn() = init;
        };
    };
}
