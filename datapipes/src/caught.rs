//! Panics that are caught and become errors of an item, without being printed.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, PanicHookInfo, catch_unwind, set_hook, take_hook};
use std::sync::Once;

use crate::{Error, Result};

thread_local! {
    /// True while panics of this thread are caught.
    static CAUGHT: Cell<bool> = const { Cell::new(false) };
    /// Source location of the caught panic.
    static PLACE: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// Runs `work` on the calling thread, and returns a panic as an error with its source location,
/// without printing anything.
///
/// Use it around third-party code that panics on hostile files, such as a decoder, if the panic is
/// an error of that file and no value survives that the panic could have left half done. Pipes and
/// their closures do not need it: the library catches their panics and names the node. Those panics
/// are printed as usual, since they are mistakes in the program.
///
/// The program's panic hook prints panics. The first call installs a hook before it, which passes
/// on all panics except those of `work` on its own thread. A hook that is set later, and does not
/// call the hook that it replaces, receives the panics of `work` too. If panics abort the program,
/// nothing is caught, and the program's hook receives every panic.
///
/// # Errors
/// [`ErrorKind::Panic`](crate::ErrorKind::Panic) if `work` panics. An error of this kind ends an
/// epoch, so an error of an item should have it as its [source](Error::with_source).
///
/// # Examples
/// ```
/// use datapipes::{Error, ErrorKind, catch_panic};
/// fn header(file: &[u8]) -> datapipes::Result<u8> {
///     let read = catch_panic(|| file[7]); // a reader of somebody else's
///     read.map_err(|panic| Error::corrupt("the header").with_source(panic))
/// }
/// assert_eq!(header(&[0; 8])?, 0);
/// assert_eq!(header(&[]).unwrap_err().kind(), ErrorKind::Corrupt);
/// # Ok::<(), Error>(())
/// ```
pub fn catch_panic<R>(work: impl FnOnce() -> R) -> Result<R> {
    install();
    let around = CAUGHT.replace(true);
    let done = catch_unwind(AssertUnwindSafe(work));
    CAUGHT.set(around);
    let place = PLACE.take();
    done.map_err(|payload| {
        let error = Error::panic(payload);
        match place {
            Some(place) => error.within(place),
            None => error,
        }
    })
}

/// Installs our hook before the program's, once. A thread that unwinds cannot set a hook.
fn install() {
    static INSTALLED: Once = Once::new();
    if INSTALLED.is_completed() || cfg!(panic = "abort") || std::thread::panicking() {
        return;
    }
    INSTALLED.call_once(|| {
        let before = take_hook();
        set_hook(Box::new(move |panic| {
            if !is_caught(panic) {
                before(panic);
            }
        }));
    });
}

/// Returns true if a panic is caught. A second panic during the first is not: it ends the program,
/// and must be printed.
fn is_caught(panic: &PanicHookInfo<'_>) -> bool {
    // The hook may be called while the thread ends and its thread-local values are gone.
    let first = PLACE.try_with(|place| match place.try_borrow_mut() {
        Ok(mut place) if CAUGHT.get() && place.is_none() => {
            *place = Some(
                panic
                    .location()
                    .map(ToString::to_string)
                    .unwrap_or_default(),
            );
            true
        }
        _ => false,
    });
    first.unwrap_or(false)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_panic_is_an_error_that_says_where_it_was() {
        let line = line!() + 1;
        let error = catch_panic(|| panic!("index {}", 7)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Panic);
        let place = format!("caught.rs:{line}:");
        assert!(
            error.to_string().contains(&place) && error.to_string().ends_with(": index 7"),
            "{error}"
        );
        assert_eq!(catch_panic(|| 7).unwrap(), 7);
        // Nested calls.
        let outer = || {
            assert!(
                catch_panic(|| panic!("inner"))
                    .unwrap_err()
                    .to_string()
                    .ends_with(": inner")
            );
            panic!("outer");
        };
        assert!(
            catch_panic::<()>(outer)
                .unwrap_err()
                .to_string()
                .ends_with(": outer")
        );
    }

    /// The child process of the next test.
    #[test]
    #[ignore = "a child of the next test"]
    fn child() {
        set_hook(Box::new(|panic| {
            eprintln!("the program's own hook: {panic}")
        }));
        for _ in 0..3 {
            catch_panic(|| panic!("caught")).unwrap_err();
        }
        let other = catch_panic(|| {
            std::thread::spawn(|| panic!("of another thread"))
                .join()
                .is_err()
        });
        assert!(other.unwrap());
        catch_unwind(|| panic!("afterwards")).unwrap_err();
        // A hook that is set later and calls the one that was there.
        let before = take_hook();
        set_hook(Box::new(move |panic| before(panic)));
        catch_panic(|| panic!("caught")).unwrap_err();
        catch_unwind(|| panic!("at the end")).unwrap_err();
    }

    #[test]
    fn a_caught_panic_prints_nothing_and_all_others_are_heard_by_the_hook_that_was_there() {
        let child = Command::new(std::env::current_exe().unwrap())
            .args([
                "--ignored",
                "--exact",
                "--nocapture",
                "caught::tests::child",
            ])
            .env("RUST_BACKTRACE", "1")
            .output()
            .unwrap();
        let said = String::from_utf8_lossy(&child.stderr);
        assert!(child.status.success(), "{said}");
        assert_eq!(said.matches("the program's own hook").count(), 3, "{said}");
        for heard in ["of another thread", "afterwards", "at the end"] {
            assert!(said.contains(heard), "{said}");
        }
        assert!(!said.contains("caught\n"), "{said}");
    }
}
