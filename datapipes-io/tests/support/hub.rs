//! A server that answers as the Hugging Face Hub does, for the data set `org/name`, and a second
//! server that holds the large files.

use std::collections::BTreeSet;

use datapipes_io::stores::{Hub, http::HubBuilder};

use super::bad_http::*;

/// Commits.
pub const OLD: &str = "1111111111111111111111111111111111111111";
pub const NEW: &str = "2222222222222222222222222222222222222222";

/// Size in bytes from which a file is on the second server.
const LARGE: usize = 16;

pub struct FakeHub {
    pub hub: BadHttp,
    pub files: BadHttp,
}

impl FakeHub {
    /// Starts servers without a branch and without commits.
    pub fn start() -> FakeHub {
        FakeHub {
            hub: BadHttp::start(),
            files: BadHttp::start(),
        }
    }

    /// Returns options for a store of this hub, without a token.
    pub fn builder(&self, url: &str) -> HubBuilder {
        Hub::builder(url).endpoint(&self.hub.url()).anonymous()
    }

    pub fn open(&self, url: &str) -> Hub {
        self.builder(url).build().expect("a URL that makes sense")
    }

    /// Returns the path at which the commit of a branch is asked for.
    pub fn revision_path(branch: &str) -> String {
        format!("/api/datasets/org/name/revision/{branch}?expand=sha")
    }

    pub fn tree_path(commit: &str, folder: &str) -> String {
        let slash = if folder.is_empty() { "" } else { "/" };
        let folder = escaped(folder);
        format!("/api/datasets/org/name/tree/{commit}{slash}{folder}?recursive=true&expand=false")
    }

    pub fn resolve_path(commit: &str, path: &str) -> String {
        format!("/datasets/org/name/resolve/{commit}/{}", escaped(path))
    }

    /// Makes a branch lead to a commit.
    pub fn point(&self, branch: &str, commit: &str) {
        let said = format!(r#"{{"_id":"6","id":"org/name","sha":"{commit}"}}"#);
        self.hub.on(
            &FakeHub::revision_path(branch),
            [page("application/json", &said)],
        );
    }

    /// Serves a commit with these files, and its listings in pages of `per_page` entries.
    pub fn commit(&self, commit: &str, files: &[(&str, &[u8])], per_page: usize) {
        let mut folders = BTreeSet::from([""]);
        for (path, data) in files {
            folders.extend(path.match_indices('/').map(|(at, _)| &path[..at]));
            self.file(commit, path, data);
        }
        for folder in &folders {
            let inside = |path: &str| {
                folder.is_empty()
                    || path
                        .strip_prefix(folder)
                        .is_some_and(|rest| rest.starts_with('/'))
            };
            // The hub names folders first.
            let below = folders
                .iter()
                .filter(|path| !path.is_empty() && inside(path));
            let mut entries: Vec<String> = below
                .map(|path| format!(r#"{{"type":"directory","oid":"0","size":0,"path":{path:?}}}"#))
                .collect();
            entries.extend(files.iter().rev().filter(|(path, _)| inside(path)).map(|(path, data)| {
                let size = data.len();
                format!(r#"{{"type":"file","oid":"{size}","size":{size},"path":{path:?},"lfs":{{"oid":"0"}}}}"#)
            }));
            self.pages(&FakeHub::tree_path(commit, folder), &entries, per_page);
        }
    }

    /// Serves entries in pages, each with a link to the next.
    pub fn pages(&self, path: &str, entries: &[String], per_page: usize) {
        let pages: Vec<_> = entries.chunks(per_page).collect();
        for (n, page) in pages.iter().enumerate() {
            let at = |n: usize| match n {
                0 => path.to_owned(),
                n => format!("{path}&cursor={n}"),
            };
            let link = match n + 1 < pages.len() {
                true => format!(
                    "Link: <{}{}>; rel=\"next\"\r\n",
                    self.hub.url().trim_end_matches('/'),
                    at(n + 1)
                ),
                false => String::new(),
            };
            let text = format!("[{}]", page.join(","));
            let headers = format!("Content-Type: application/json\r\n{link}");
            self.hub.on(&at(n), [status_with(200, &headers, &text)]);
        }
    }

    /// Serves a file: a small one by the hub itself at another place, a large one by the second
    /// server under a signed URL.
    pub fn file(&self, commit: &str, path: &str, data: &[u8]) {
        let place = format!("{commit}/{}", escaped(path));
        let to = if data.len() < LARGE {
            let to = format!(
                "/api/resolve-cache/datasets/org/name/{place}?etag=%22{}%22",
                data.len()
            );
            self.hub.on(&to, [object(data)]);
            to
        } else {
            let to = format!("/xet/{place}?X-Amz-Expires=3600&Signature=marker-signature");
            self.files.on(&to, [object(data)]);
            format!("{}{to}", self.files.url().trim_end_matches('/'))
        };
        let headers = format!(
            "Location: {to}\r\nX-Repo-Commit: {commit}\r\nX-Linked-Size: {}\r\nX-Linked-ETag: \"0\"\r\n",
            data.len()
        );
        let act = status_with(302, &headers, "Found. Redirecting");
        self.hub.on(&FakeHub::resolve_path(commit, path), [act]);
    }

    /// Returns an act that refuses as the hub does.
    pub fn refuse(status: u16, code: &str) -> Act {
        let headers = format!("X-Error-Code: {code}\r\nX-Error-Message: it is so\r\n");
        status_with(status, &headers, r#"{"error":"it is so"}"#)
    }
}

/// Percent-encodes what a path must not have.
fn escaped(path: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~/!$&'()*+,;=:@".contains(&byte);
    path.bytes()
        .map(|byte| match plain(byte) {
            true => char::from(byte).to_string(),
            false => format!("%{byte:02X}"),
        })
        .collect()
}
