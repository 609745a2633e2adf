//! Lists the objects of a store that match a pattern.

use std::path::Path;
use std::pin::Pin;
use std::sync::Arc;

use datapipes::{Context, Error, Hints, Item, Items, Result, Source};
use futures::StreamExt;
use futures::future::ready;
use futures::stream;

use super::Store;
use super::names::Listed;
use super::pattern::Pattern;
use super::refused::Refused;
use crate::FileRef;

/// Lists the objects of a store that match a pattern; see
/// [`StoreExt::list_files`](crate::StoreExt::list_files).
#[derive(Clone)]
#[must_use]
pub struct ListStore {
    store: Arc<dyn Store>,
    text: String,
    pattern: Result<Arc<Pattern>, String>,
    allow_empty: bool,
}

impl ListStore {
    /// Returns a source of the objects of `store` whose keys match `pattern`.
    pub fn new(store: Arc<dyn Store>, pattern: &str) -> Self {
        let parsed = Pattern::parse(pattern).map(Arc::new);
        ListStore {
            store,
            text: pattern.to_owned(),
            pattern: parsed,
            allow_empty: false,
        }
    }

    /// Returns a source in place of that of a store that cannot be opened: a graph of it has this
    /// problem.
    pub(super) fn failing(problem: String) -> Self {
        ListStore {
            pattern: Err(problem),
            ..ListStore::new(Arc::new(super::InMemory::new()), "")
        }
    }

    /// Makes an empty result no error.
    pub fn allow_empty(mut self) -> Self {
        self.allow_empty = true;
        self
    }
}

datapipes::formatted! { Debug |list: ListStore| "ListStore({}{})", list.store.url(), list.text; }

impl Source for ListStore {
    type Out = FileRef;

    fn open(&self, cx: &Context) -> Items<FileRef> {
        let pattern = match &self.pattern {
            Ok(pattern) => pattern.clone(),
            Err(problem) => return Items::fail(Error::config(problem.clone())),
        };
        let (store, cx, allow_empty) = (self.store.clone(), cx.clone(), self.allow_empty);
        let nothing = format!("no object matches {:?} under {}", self.text, store.url());
        let mut given = datapipes::or_fail!(Listed::of(&cx));
        Items::generate(async move |out| {
            let mut index = 0;
            let mut listed = match given.pin(&*store).await {
                Ok(()) => store.list(&pattern.prefix()),
                Err(error) => stream::once(ready(Err(error))).boxed(),
            }
            .peekable();
            loop {
                if given.is_new() {
                    out.snapshot(&cx, || given.kept());
                }
                let Some(found) = listed.next().await else {
                    break;
                };
                if cx.is_cancelled() {
                    return;
                }
                let origin = cx.origin(index);
                let found = match found {
                    Ok(meta) if !pattern.accepts(Path::new(&meta.key)) => continue,
                    Ok(meta) => {
                        let origin = origin.named(&*meta.key);
                        Ok(Item::new(
                            FileRef::stored(store.clone(), meta.key, meta.size),
                            origin,
                        ))
                    }
                    Err(error) => {
                        let error = with_steps(error, &store, &pattern, &cx).await.of(&origin);
                        // A listing that breaks off might have had any number of further objects.
                        let breaks_off = Pin::new(&mut listed).peek().await.is_none();
                        Err(if breaks_off { error.fatal() } else { error })
                    }
                };
                index += 1;
                match given.next(&found) {
                    Ok(true) => out.emit(found).await,
                    Ok(false) => {}
                    Err(error) => return out.emit(Err(error)).await,
                }
            }
            if let Err(error) = given.end() {
                out.emit(Err(error)).await;
            } else if index == 0 && !allow_empty {
                out.emit(Err(Error::not_found(nothing).fatal())).await;
            }
        })
    }
    fn name(&self) -> String {
        "list_files".to_owned()
    }
    /// The snapshot is a digest of the names that were given, and the revision of the store.
    fn hints(&self) -> Hints {
        let problem = self.pattern.as_ref().err().map(String::as_str);
        let settings = format!("{}{}", self.store.url(), self.text);
        Hints::any_order()
            .is_resumable(true)
            .settings(settings)
            .problem(problem)
    }
    fn weigh(&self, file: &FileRef) -> Option<usize> {
        Some(size_of::<FileRef>() + file.path.as_os_str().len())
    }
}

/// Adds to a refusal the first steps that would use the files.
async fn with_steps(
    error: Error,
    store: &Arc<dyn Store>,
    pattern: &Pattern,
    cx: &Context,
) -> Error {
    let Some(refused) = Refused::of_error(&error) else {
        return error;
    };
    let steps_of = |names: Vec<String>, places: Vec<u64>| {
        let (store, run) = (store.clone(), cx.clone());
        let files = move || {
            let file = |name: &String| FileRef::stored(store.clone(), name.clone(), None);
            run.run(names.iter().map(file).collect(), 0)
        };
        let wanted = places.into_iter().map(|place| cx.origin(place));
        cx.first_steps(files, wanted.collect())
    };
    let is_used = |name: &str| pattern.accepts(Path::new(name));
    let refused = refused.clone().with_steps(is_used, steps_of).await;
    refused.into_error()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prelude::*;
    use crate::stores::{Get, InMemory, Meta, Object};
    use datapipes::ErrorKind;

    /// A store whose listing fails, and goes on after that or not.
    #[derive(Debug)]
    struct Failing {
        goes_on: bool,
    }

    #[async_trait::async_trait]
    impl Store for Failing {
        fn url(&self) -> &str {
            "failing:///"
        }
        async fn get(&self, key: &str, _: Get) -> Result<Object> {
            Err(Error::not_found(key))
        }
        fn list(&self, _: &str) -> stream::BoxStream<'static, Result<Meta>> {
            let failure = Error::unavailable("busy");
            let mut listed = vec![Ok(Meta::new("a")), Err(failure)];
            if self.goes_on {
                listed.push(Ok(Meta::new("b")));
            }
            stream::iter(listed).boxed()
        }
    }

    #[test]
    fn no_policy_skips_the_rest_of_a_listing_that_breaks_off() {
        let run = |goes_on| {
            let store: Arc<dyn Store> = Arc::new(Failing { goes_on });
            let builder = datapipes::DataLoader::builder(store.list_files("*"));
            let loader = builder.on_error(datapipes::OnError::skip(100)).build();
            let epoch = loader.unwrap().epoch(0).blocking();
            epoch.collect::<Result<Vec<_>>>()
        };
        assert_eq!(run(true).unwrap().len(), 2);
        assert_eq!(run(false).unwrap_err().kind(), ErrorKind::Unavailable);
    }

    #[test]
    fn objects_are_listed_and_loaded_like_files() {
        let store =
            InMemory::from_iter([("a/1.txt", "one"), ("a/2.txt", "two"), ("b/3.bin", "three")]);
        let files = store
            .clone()
            .list_files("a/*.txt")
            .load_files()
            .collect()
            .unwrap();
        let seen: Vec<_> = files
            .iter()
            .map(|file| (&*file.name, &file.data[..]))
            .collect();
        assert_eq!(seen, [("a/1.txt", &b"one"[..]), ("a/2.txt", b"two")]);

        let error = store.clone().list_files("c/*").collect().unwrap_err();
        assert_eq!(
            error.to_string(),
            "list_files: not found: no object matches \"c/*\" under memory:///"
        );
        let error = store.list_files("../*").collect().unwrap_err();
        assert!(error.to_string().contains("leaves the root"), "{error}");
    }

    #[test]
    fn what_vanished_or_changed_after_it_was_listed_is_an_error_in_its_place() {
        let store = InMemory::from_iter([("1", "one"), ("2", "two"), ("3", "three")]);
        let files = store.clone().list_files("*").collect().unwrap();
        store.remove("1");
        store.put("2", "longer");
        let graph = datapipes::Graph::from_vec(files).load_files();
        let loader = datapipes::DataLoader::builder(graph)
            .on_error(datapipes::OnError::skip(9))
            .build()
            .unwrap();
        let seen: Vec<_> = loader
            .epoch(0)
            .blocking()
            .map(|file| file.unwrap().name)
            .collect();
        assert_eq!(seen, ["3".into()]);

        let gone = datapipes::Graph::from_vec(vec![FileRef::stored(Arc::new(store), "1", None)]);
        let error = gone.load_files().collect().unwrap_err();
        assert_eq!(error.to_string(), "load_files: 1: not found: memory:///1");
    }
}
