//! Patterns of file names: the names they accept, and the folders that can hold them.

use std::path::{Path, PathBuf};

use globset::{GlobBuilder, GlobMatcher};

/// A glob over paths relative to a root.
#[derive(Debug)]
pub(super) struct Pattern {
    whole: GlobMatcher,
    /// The path before the first part with a wildcard: nothing else needs to be listed.
    pub(super) start: PathBuf,
    /// The last part, if there is no wildcard at all.
    pub(super) name: Option<String>,
    /// Patterns of the folders below `start`, by depth.
    folders: Vec<GlobMatcher>,
    /// True if folders below those are entered, whatever their names.
    deep: bool,
}

impl Pattern {
    pub(super) fn parse(pattern: &str) -> Result<Self, String> {
        let mut parts = parts(pattern);
        parts.retain(|part| !part.is_empty() && part != ".");
        if pattern.starts_with('/') {
            return Err(format!(
                "the pattern `{pattern}` is absolute; it is relative to the root"
            ));
        }
        if parts.iter().any(|part| part == "..") {
            return Err(format!("the pattern `{pattern}` leaves the root"));
        }
        let whole = glob(&parts.join("/")).map_err(|error| error.to_string())?;

        let literal = parts
            .iter()
            .take_while(|part| !part.contains(['*', '?', '[', ']', '{', '}', '\\']))
            .count();
        let name = parts.last().filter(|_| literal == parts.len()).cloned();
        let start = parts
            .drain(..literal.min(parts.len().saturating_sub(1)))
            .collect();
        let mut folders = Vec::new();
        let mut deep = false;
        let names = parts.len().saturating_sub(1);
        for (place, part) in parts.iter().enumerate() {
            // Alternatives with slashes in them have any depth.
            match glob(part) {
                Ok(folder) if part != "**" && !part.contains('/') => {
                    if place < names {
                        folders.push(folder);
                    }
                }
                _ => {
                    deep = true;
                    break;
                }
            }
        }
        Ok(Pattern {
            whole,
            start,
            name,
            folders,
            deep,
        })
    }

    /// Returns the common prefix of all keys that match.
    pub(super) fn prefix(&self) -> String {
        let mut prefix = self.start.to_string_lossy().into_owned();
        if !prefix.is_empty() {
            prefix.push('/');
        }
        prefix + self.name.as_deref().unwrap_or("")
    }

    /// Accepts all files in `start` whose names begin with `name`, and the files below folders
    /// whose names do.
    pub(super) fn below(start: &str, name: &str) -> Result<Self, String> {
        let glob = |pattern: &str| glob(pattern).map_err(|error| error.to_string());
        let folders = vec![glob(&format!("{}*", globset::escape(name)))?];
        Ok(Pattern {
            whole: glob("**")?,
            start: start.into(),
            name: None,
            folders,
            deep: true,
        })
    }

    /// Returns true if a path relative to the root matches.
    pub(super) fn accepts(&self, path: &Path) -> bool {
        self.whole.is_match(path)
    }

    /// Returns true if a folder, `depth` folders below the start, can hold a match.
    pub(super) fn enters(&self, name: &Path, depth: usize) -> bool {
        self.folders
            .get(depth)
            .map_or(self.deep, |folder| folder.is_match(name))
    }
}

fn glob(pattern: &str) -> Result<GlobMatcher, globset::Error> {
    let glob = GlobBuilder::new(pattern)
        .literal_separator(true)
        .backslash_escape(true)
        .build()?;
    Ok(glob.compile_matcher())
}

/// Splits at slashes that are not inside braces.
fn parts(pattern: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut braces = 0usize;
    let mut escaped = false;
    for c in pattern.chars() {
        match c {
            '{' if !escaped => braces += 1,
            '}' if !escaped => braces = braces.saturating_sub(1),
            _ => {}
        }
        escaped = c == '\\' && !escaped;
        match c {
            '/' if braces == 0 => parts.push(String::new()),
            _ => parts.last_mut().expect("begins with one").push(c),
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enters(pattern: &Pattern, names: &[&str]) -> bool {
        names
            .iter()
            .enumerate()
            .all(|(depth, name)| pattern.enters(Path::new(name), depth))
    }

    #[test]
    fn folders_that_cannot_match_are_not_entered() {
        let pattern = Pattern::parse("train/v1/*/img{a,b}/**/*.jpg").unwrap();
        assert_eq!(pattern.start, Path::new("train/v1"));
        assert!(enters(&pattern, &["x", "imga", "deep", "deeper"]));
        assert!(!enters(&pattern, &["x", "imgc"]));
        let flat = Pattern::parse("*.jpg").unwrap();
        assert!(!enters(&flat, &["x"]));
        assert!(enters(
            &Pattern::parse("{a/b,c}/*.jpg").unwrap(),
            &["a", "b"]
        ));
        assert!(enters(&Pattern::parse("a*/**").unwrap(), &["ab", "c", "d"]));
    }

    #[test]
    fn wildcards_stop_at_slashes_and_double_stars_do_not() {
        let accepts = |pattern, path| Pattern::parse(pattern).unwrap().accepts(Path::new(path));
        assert!(accepts("*.jpg", "a.jpg") && !accepts("*.jpg", "d/a.jpg"));
        assert!(accepts("**/*.jpg", "a.jpg") && accepts("**/*.jpg", "d/e/a.jpg"));
        assert!(accepts("{a,b}?.tar", "b1.tar") && !accepts("{a,b}?.tar", "c1.tar"));
        assert!(accepts("./a//b.jpg", "a/b.jpg"));
        assert!(accepts("*", ".hidden"));
    }

    #[test]
    fn patterns_that_make_no_sense_are_refused() {
        for pattern in ["/a/*", "../*", "a/[", "{a"] {
            assert!(Pattern::parse(pattern).is_err(), "{pattern}");
        }
    }
}
