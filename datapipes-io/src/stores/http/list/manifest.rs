//! A file that names all objects.

use std::collections::VecDeque;

use datapipes::{Error, Result};
use futures::stream::{self, BoxStream};
use futures::{Stream, StreamExt};

use super::json::{Element, Elements};
use super::{Http, Meta, Text, ask, corrupt, no_key, shown};
use crate::stores::http::address::check_key;
use crate::stores::http::answer::is_strong;

/// Maximum length of a line in bytes.
const LINE: usize = 64 << 10;

pub(super) async fn open(
    http: &Http,
    key: &str,
    prefix: String,
) -> Result<BoxStream<'static, Result<Meta>>> {
    let text = ask(http, http.0.address.of(key)?, shown(http, key)).await?;
    let json = key.ends_with(".json") || text.kind == "application/json";
    let form = if json {
        Form::Json(Elements::default())
    } else {
        Form::Lines(Vec::new())
    };
    Ok(read(text, form, prefix))
}

/// A manifest that is open.
struct Manifest<S> {
    text: Text<S>,
    reader: Reader,
    ended: bool,
}

fn read<S>(text: Text<S>, form: Form, prefix: String) -> BoxStream<'static, Result<Meta>>
where
    S: Stream<Item = Result<bytes::Bytes>> + Send + Unpin + 'static,
{
    let reader = Reader {
        name: text.name.clone(),
        prefix,
        form,
        last: String::new(),
        ready: VecDeque::new(),
    };
    stream::unfold(
        Manifest {
            text,
            reader,
            ended: false,
        },
        |mut manifest| async move {
            loop {
                if let Some(found) = manifest.reader.ready.pop_front() {
                    return Some((found, manifest));
                } else if manifest.ended {
                    return None;
                }
                let taken = match manifest.text.body.next().await {
                    Some(Ok(data)) => manifest.reader.feed(&data),
                    Some(Err(error)) => {
                        manifest.ended = true;
                        Err(error)
                    }
                    None => {
                        manifest.ended = true;
                        manifest.reader.end()
                    }
                };
                if let Err(error) = taken {
                    manifest.ended = true;
                    manifest.reader.ready.push_back(Err(error));
                }
            }
        },
    )
    .boxed()
}

enum Form {
    /// The current line.
    Lines(Vec<u8>),
    Json(Elements),
}

/// Reader that turns bytes into keys. Holds the keys of one piece of the body.
struct Reader {
    name: String,
    prefix: String,
    form: Form,
    last: String,
    ready: VecDeque<Result<Meta>>,
}

impl Reader {
    fn feed(&mut self, data: &[u8]) -> Result<()> {
        let (form, mut sink) = self.split();
        match form {
            Form::Json(elements) => elements.feed(data, &mut |element| sink.element(element)),
            Form::Lines(held) => lines(held, data, &mut sink),
        }
        .map_err(|why| corrupt(&self.name, why))
    }

    fn end(&mut self) -> Result<()> {
        let (form, mut sink) = self.split();
        match form {
            Form::Json(elements) => elements.end().map_err(|why| corrupt(&self.name, why)),
            Form::Lines(held) => {
                sink.line(held);
                Ok(())
            }
        }
    }

    /// Returns the state of the parser, and the place where keys go.
    fn split(&mut self) -> (&mut Form, Sink<'_>) {
        let sink = Sink {
            name: &self.name,
            prefix: &self.prefix,
            last: &mut self.last,
            ready: &mut self.ready,
        };
        (&mut self.form, sink)
    }
}

fn lines(held: &mut Vec<u8>, data: &[u8], sink: &mut Sink<'_>) -> Result<(), &'static str> {
    let mut rest = data;
    while let Some(end) = rest.iter().position(|byte| *byte == b'\n') {
        let (line, next) = (&rest[..end], &rest[end + 1..]);
        if held.is_empty() {
            sink.line(line);
        } else {
            held.extend_from_slice(line);
            sink.line(held);
            held.clear();
        }
        rest = next;
    }
    held.extend_from_slice(rest);
    if held.len() > LINE {
        Err("a line of more than 64 KiB")
    } else {
        Ok(())
    }
}

struct Sink<'a> {
    name: &'a str,
    prefix: &'a str,
    last: &'a mut String,
    ready: &'a mut VecDeque<Result<Meta>>,
}

impl Sink<'_> {
    /// Parses `key`, `key TAB size`, `key TAB size TAB etag`.
    fn line(&mut self, line: &[u8]) {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        if line.is_empty() {
            return;
        }
        let Ok(text) = std::str::from_utf8(line) else {
            let text = String::from_utf8_lossy(line);
            return self
                .ready
                .push_back(Err(no_key(self.name, &text, "it is not UTF-8")));
        };
        let mut columns = text.split('\t');
        let key = columns.next().unwrap_or("");
        let size = columns.next().filter(|size| !size.is_empty());
        match size.map(str::parse).transpose() {
            Ok(size) => self.key(key, size, columns.next()),
            Err(_) => self
                .ready
                .push_back(Err(no_key(self.name, text, "its size is no number"))),
        }
    }

    fn element(&mut self, element: &[u8]) -> Result<(), &'static str> {
        match serde_json::from_slice(element) {
            Err(_) => return Err("an element that is neither a key nor has one"),
            Ok(Element::Key(key)) => self.key(&key, None, None),
            Ok(Element::Named(named)) => self.key(&named.name, named.size, named.etag.as_deref()),
            Ok(Element::Row(row)) => match row.first().and_then(serde_json::Value::as_str) {
                Some(key) => self.key(key, None, None),
                None => return Err("an array that does not begin with a key"),
            },
        }
        Ok(())
    }

    fn key(&mut self, key: &str, size: Option<u64>, etag: Option<&str>) {
        let key = key.strip_prefix("./").unwrap_or(key);
        if let Err(why) = check_key(key) {
            self.ready.push_back(Err(no_key(self.name, key, why)));
        } else if key.starts_with(self.prefix) && key != self.last {
            key.clone_into(self.last);
            let version = etag.filter(|etag| is_strong(etag)).map(str::to_owned);
            self.ready.push_back(Ok::<_, Error>(Meta {
                key: key.to_owned(),
                size,
                version,
            }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(form: Form, prefix: &str, text: &[u8], step: usize) -> (Vec<Result<Meta>>, Result<()>) {
        let (name, prefix) = ("u".to_owned(), prefix.to_owned());
        let mut reader = Reader {
            name,
            prefix,
            form,
            last: String::new(),
            ready: VecDeque::new(),
        };
        let fed = text.chunks(step).try_for_each(|piece| reader.feed(piece));
        let end = fed.and_then(|()| reader.end());
        (reader.ready.into(), end)
    }

    fn keys(found: &[Result<Meta>]) -> Vec<&str> {
        found.iter().flatten().map(|meta| &*meta.key).collect()
    }

    #[test]
    fn lines_have_keys_sizes_and_etags() {
        let text =
            "./a b\t7\t\"v1\"\r\n\na/ü%2F\t\t\"v2\"\na/ü%2F\nzz\t3\tW/\"weak\"\nend".as_bytes();
        for step in 1..text.len() {
            let (found, end) = read(Form::Lines(Vec::new()), "", text, step);
            end.unwrap();
            assert_eq!(keys(&found), ["a b", "a/ü%2F", "zz", "end"]);
            let metas: Vec<_> = found.into_iter().map(|meta| meta.unwrap()).collect();
            assert_eq!(
                (metas[0].size, metas[0].version.as_deref()),
                (Some(7), Some("\"v1\""))
            );
            assert_eq!(
                (metas[2].size, metas[2].version.as_deref()),
                (Some(3), None)
            );
        }
        assert_eq!(
            keys(&read(Form::Lines(Vec::new()), "a/", text, 9).0),
            ["a/ü%2F"]
        );
    }

    #[test]
    fn row_66_lines_that_are_no_keys_are_errors_in_their_places() {
        let text = b"a\n../b\n/c\nd\xff\ne\tmany\nf\n";
        let (found, end) = read(Form::Lines(Vec::new()), "", text, 100);
        end.unwrap();
        assert_eq!(
            found.iter().map(Result::is_ok).collect::<Vec<_>>(),
            [true, false, false, false, false, true]
        );
        let (_, end) = read(Form::Lines(Vec::new()), "", &[b'x'; LINE + 1], 4096);
        assert!(end.is_err());
    }

    #[test]
    fn json_has_keys_in_three_forms() {
        let text =
            br#"["a\n\u00fc", {"name": "b", "size": 3, "x": null}, {"key": "c", "etag": "\"v\""}, ["d", 1]]"#;
        for step in 1..text.len() {
            let (found, end) = read(Form::Json(Elements::default()), "", text, step);
            end.unwrap();
            assert_eq!(keys(&found), ["a\nü", "b", "c", "d"]);
        }
        for wrong in [&b"[1]"[..], b"[{}]", b"[[1]]", b"[\"a\", nope]", b"[\"a\""] {
            assert!(
                read(Form::Json(Elements::default()), "", wrong, 100)
                    .1
                    .is_err()
            );
        }
    }
}
