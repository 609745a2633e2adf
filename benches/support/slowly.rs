//! Files that take long to open, as on a network file system.

use std::time::Duration;

use datapipes::{Arity, Context, Hints, Items, Pipe, Work};
use datapipes_io::FileRef;

/// Waits before each file is opened.
pub struct OpenSlowly(pub Duration);

impl Pipe<FileRef> for OpenSlowly {
    type Out = FileRef;

    fn apply(&self, mut input: Items<FileRef>, cx: &Context) -> Items<FileRef> {
        let (wait, cx) = (self.0, cx.clone());
        Items::generate(async move |out| {
            while let Some(file) = out.next_from(&mut input).await {
                match cx.blocking(move || std::thread::sleep(wait)).await {
                    Ok(()) => out.emit(Ok(file)).await,
                    Err(error) => out.emit(Err(error)).await,
                }
            }
        })
    }

    fn hints(&self) -> Hints {
        Hints::shardable()
            .work(Work::Io)
            .seldom_waits(true)
            .arity(Arity::One)
    }
}
