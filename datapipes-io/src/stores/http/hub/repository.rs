//! Repositories of the hub, by their URLs.

use std::fmt;

use datapipes::{Error, Result};
use percent_encoding::{NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};

use crate::stores::http::address::{IN_PATH, check_key};
use crate::stores::redacted;

/// A folder of a repository at a revision.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Repository {
    kind: Kind,
    /// Name, with its organization unless it is an old one.
    pub id: String,
    /// Revision as it was asked for; `None` for the main branch.
    pub revision: Option<String>,
    /// The folder: empty, or with a `/` at its end.
    pub folder: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Dataset,
    Model,
    Space,
}

impl Repository {
    /// Parses `hf://[datasets/|models/|spaces/]ID[@REVISION][/FOLDER]`.
    ///
    /// # Errors
    /// `Config`, with the URL, unless it has this form.
    pub fn parse(url: &str) -> Result<Repository> {
        let wrong = |why: &str| {
            let words = format!(
                "{}: {why}; write hf://datasets/org/name@revision/folder",
                redacted(url)
            );
            Error::config(words)
        };
        let (scheme, path) = url.split_once("://").unwrap_or_default();
        if !scheme.eq_ignore_ascii_case("hf") {
            return Err(wrong("it does not begin with hf://"));
        }
        if path.contains(['?', '#']) {
            return Err(wrong("a ? or # is percent-encoded in a path"));
        }
        let mut parts = path.trim_end_matches('/').split('/').peekable();
        let kind = match parts.peek().copied() {
            Some("datasets") => Kind::Dataset,
            Some("spaces") => Kind::Space,
            Some("buckets" | "kernels") => {
                return Err(wrong("only data sets, models and spaces can be read"));
            }
            _ => Kind::Model,
        };
        parts.next_if(|part| matches!(*part, "datasets" | "models" | "spaces"));
        // A file may have an @ in its name; a repository has none.
        let mut id = String::new();
        let mut revision = None;
        for part in parts.by_ref().take(2) {
            let (name, after) = part
                .split_once('@')
                .map_or((part, None), |(name, after)| (name, Some(after)));
            id = if id.is_empty() {
                name.to_owned()
            } else {
                format!("{id}/{name}")
            };
            revision = after;
            if after.is_some() || !is_name(name) {
                break;
            }
        }
        if !id.split('/').all(is_name) {
            return Err(wrong("it names no repository"));
        }
        let decoded = |text: &str| match percent_decode_str(text).decode_utf8() {
            Ok(text) => Ok(text.into_owned()),
            Err(_) => Err(wrong("it is not UTF-8")),
        };
        let mut rest: Vec<&str> = parts.collect();
        let revision = match (revision, &rest[..]) {
            (Some("refs"), [space @ ("convert" | "pr"), name, ..]) => {
                let revision = format!("refs/{space}/{}", decoded(name)?);
                rest.drain(..2);
                Some(revision)
            }
            (Some(revision), _) => Some(decoded(revision)?),
            (None, _) => None,
        };
        let mut folder = decoded(&rest.join("/"))?;
        if !folder.is_empty() {
            check_key(&folder).map_err(wrong)?;
            folder.push('/');
        }
        let repository = Repository {
            kind,
            id,
            revision: None,
            folder,
        };
        match revision {
            Some(revision) => repository.at(&revision),
            None => Ok(repository),
        }
    }

    /// Returns the same folder at a revision.
    ///
    /// # Errors
    /// `Config` if the text can be no revision.
    pub fn at(self, revision: &str) -> Result<Repository> {
        let is_odd = |c: char| c.is_whitespace() || c.is_control() || "~^:?*[\\".contains(c);
        if revision.is_empty() || revision.contains(is_odd) || revision.contains("..") {
            let words = format!("{self}: {revision:?} is no branch, tag or commit");
            return Err(Error::config(words));
        }
        Ok(Repository {
            revision: Some(revision.to_owned()),
            ..self
        })
    }

    /// Returns the commit, if the revision names it in full.
    pub fn commit(&self) -> Option<&str> {
        self.revision
            .as_deref()
            .filter(|revision| is_commit(revision))
    }

    /// Returns the path of its pages and files on the hub, for the given name.
    pub fn path(&self, id: &str) -> String {
        match self.kind {
            Kind::Model => id.to_owned(),
            _ => format!("{}/{id}", self.plural()),
        }
    }

    /// Returns the path of its API.
    pub fn api(&self, id: &str) -> String {
        format!("api/{}/{id}", self.plural())
    }

    /// Returns the kind of the repository, in words.
    pub fn kind(&self) -> &'static str {
        match self.kind {
            Kind::Dataset => "data set",
            Kind::Model => "model",
            Kind::Space => "space",
        }
    }

    fn plural(&self) -> &'static str {
        match self.kind {
            Kind::Dataset => "datasets",
            Kind::Model => "models",
            Kind::Space => "spaces",
        }
    }
}

/// Shows its URL, which can be parsed again.
impl fmt::Display for Repository {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "hf://{}", self.path(&self.id))?;
        if let Some(revision) = &self.revision {
            write!(f, "@{}", escaped(revision))?;
        }
        write!(f, "/{}", utf8_percent_encode(&self.folder, IN_PATH))
    }
}

/// Returns a revision as one part of a path.
pub fn escaped(revision: &str) -> String {
    utf8_percent_encode(revision, NON_ALPHANUMERIC)
        .to_string()
        // These need no escape.
        .replace("%2D", "-")
        .replace("%2E", ".")
        .replace("%5F", "_")
}

/// Returns true if a text is the full name of a commit.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40
        && text
            .bytes()
            .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
}

/// Returns true if a text may name a repository or its organization.
pub fn is_name(text: &str) -> bool {
    let letter = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    !text.is_empty()
        && text.len() <= 96
        && text.bytes().all(letter)
        && !text.contains("..")
        && text != "."
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    #[test]
    fn a_url_names_a_repository_a_revision_and_a_folder() {
        for (url, path, revision, folder) in [
            ("hf://datasets/org/name", "datasets/org/name", None, ""),
            ("HF://datasets/org/name/", "datasets/org/name", None, ""),
            ("hf://datasets/squad", "datasets/squad", None, ""),
            (
                "hf://datasets/squad@v1/a/b",
                "datasets/squad",
                Some("v1"),
                "a/b/",
            ),
            (
                "hf://datasets/o/n@main/a@b.txt",
                "datasets/o/n",
                Some("main"),
                "a@b.txt/",
            ),
            (
                "hf://datasets/o/n/a@b%20c%3F",
                "datasets/o/n",
                None,
                "a@b c?/",
            ),
            (
                "hf://datasets/o/n@feature%2Fx",
                "datasets/o/n",
                Some("feature/x"),
                "",
            ),
            (
                "hf://datasets/o/n@refs%2Fconvert%2Fparquet/default",
                "datasets/o/n",
                Some("refs/convert/parquet"),
                "default/",
            ),
            (
                "hf://datasets/o/n@refs/convert/parquet/default/train",
                "datasets/o/n",
                Some("refs/convert/parquet"),
                "default/train/",
            ),
            (
                "hf://datasets/o/n@refs/pr/12",
                "datasets/o/n",
                Some("refs/pr/12"),
                "",
            ),
            (
                "hf://datasets/o/n@refs/x",
                "datasets/o/n",
                Some("refs"),
                "x/",
            ),
            ("hf://org/model/onnx", "org/model", None, "onnx/"),
            ("hf://models/org/model", "org/model", None, ""),
            ("hf://gpt2@main", "gpt2", Some("main"), ""),
            ("hf://spaces/o/n", "spaces/o/n", None, ""),
        ] {
            let found = Repository::parse(url).unwrap();
            let told = (
                found.path(&found.id),
                found.revision.clone(),
                found.folder.clone(),
            );
            assert_eq!(
                told,
                (path.into(), revision.map(str::to_owned), folder.into()),
                "{url}"
            );
            assert_eq!(
                Repository::parse(&found.to_string()).unwrap(),
                found,
                "{found}"
            );
        }
    }

    #[test]
    fn what_names_none_is_refused_with_the_form() {
        for url in [
            "hf://",
            "hf://datasets",
            "hf://datasets/",
            "hf:///datasets/o/n",
            "hf://datasets//n",
            "hf://datasets/o/..",
            "hf://datasets/o/n@",
            "hf://datasets/o/n@/a",
            "hf://datasets/o/n@a..b",
            "hf://datasets/o/n@a%20b",
            "hf://datasets/o/n/../m",
            "hf://datasets/o/n/a//../b",
            "hf://datasets/o/n/%2e%2e/x",
            "hf://datasets/o/n/%ff",
            "hf://datasets/o/n?token=x",
            "hf://buckets/o/n",
            "hf://datasets/o o/n",
            "https://huggingface.co/datasets/o/n",
        ] {
            let error = Repository::parse(url).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config, "{url}");
            assert!(error.to_string().contains("hf://"), "{error}");
        }
    }
}
