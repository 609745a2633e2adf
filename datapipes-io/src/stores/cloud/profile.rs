//! The files of AWS profiles: `~/.aws/credentials` and `~/.aws/config`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use datapipes::whole_file::read_text;
use datapipes::{Error, Result};

/// Content of a profile. Never printed.
#[derive(Default)]
pub(super) struct Profile {
    pub keys: Option<(String, String)>,
    pub token: Option<String>,
    pub region: Option<String>,
    pub endpoint: Option<String>,
    /// The first setting that refers to a source of credentials that this crate does not support.
    pub elsewhere: Option<&'static str>,
}

/// Settings by which tools get credentials from other services and programs.
const ELSEWHERE: &[&str] = &[
    "credential_process",
    "sso_session",
    "sso_start_url",
    "role_arn",
    "login_session",
    "credential_source",
];

impl Profile {
    /// Reads the profile of that name; the one called `default` may be missing.
    ///
    /// # Errors
    /// `Config` if a profile that was named is in neither file; `Io` if a file cannot be read.
    pub(super) fn read(name: Option<&str>, env: &dyn Fn(&str) -> Option<String>) -> Result<Self> {
        let home = || {
            env("HOME")
                .or_else(|| env("USERPROFILE"))
                .map(PathBuf::from)
        };
        let place = |variable: &str, file: &str| match env(variable) {
            Some(path) => Some(PathBuf::from(path)),
            None => home().map(|home| home.join(".aws").join(file)),
        };
        let wanted = name.unwrap_or("default");
        let mut found = false;
        let mut settings = BTreeMap::new();
        let files = [
            (place("AWS_CONFIG_FILE", "config"), true),
            // This file takes precedence.
            (place("AWS_SHARED_CREDENTIALS_FILE", "credentials"), false),
        ];
        for (path, is_config) in files {
            let Some(text) = path.as_deref().map(text).transpose()?.flatten() else {
                continue;
            };
            found |= collect(&text, is_config, wanted, &mut settings);
        }
        if !found && name.is_some() {
            return Err(Error::config(format!("there is no AWS profile {wanted:?}")));
        }
        let elsewhere = ELSEWHERE
            .iter()
            .copied()
            .find(|setting| settings.contains_key(*setting));
        let mut take = |key: &str| settings.remove(key).filter(|value| !value.is_empty());
        Ok(Profile {
            keys: take("aws_access_key_id").zip(take("aws_secret_access_key")),
            token: take("aws_session_token"),
            region: take("region"),
            endpoint: take("endpoint_url"),
            elsewhere,
        })
    }
}

fn text(path: &Path) -> Result<Option<String>> {
    match read_text(path, 1 << 20) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Error::new(
            Error::io(error.kind().into()).kind(),
            path.display().to_string(),
        )
        .with_source(std::io::Error::from(error.kind()))),
    }
}

/// Copies the settings of one profile into `settings`; returns true if the profile exists.
fn collect(
    text: &str,
    is_config: bool,
    wanted: &str,
    settings: &mut BTreeMap<String, String>,
) -> bool {
    let (mut here, mut found) = (false, false);
    for line in text.lines() {
        let bare = line.trim();
        if bare.starts_with(['#', ';']) || bare.is_empty() {
            continue;
        }
        if let Some(section) = bare.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            let name = section.0.trim();
            let name = match is_config {
                true if name == "default" => name,
                true => name.strip_prefix("profile ").unwrap_or_default().trim(),
                false => name,
            };
            here = name == wanted;
            found |= here;
        } else if here
            && !line.starts_with([' ', '\t'])
            && let Some((key, value)) = bare.split_once('=')
        {
            // An indented line belongs to the setting above it: the lines below `s3 =` are for the
            // tools.
            settings.insert(key.trim().to_ascii_lowercase(), value.trim().to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use datapipes::ErrorKind;

    fn profile(name: Option<&str>, config: &str, credentials: &str) -> Result<Profile> {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_string_lossy().into_owned();
        std::fs::write(path("config"), config).unwrap();
        std::fs::write(path("credentials"), credentials).unwrap();
        Profile::read(name, &|variable| match variable {
            "AWS_CONFIG_FILE" => Some(path("config")),
            "AWS_SHARED_CREDENTIALS_FILE" => Some(path("credentials")),
            _ => None,
        })
    }

    #[test]
    fn both_files_are_read_and_credentials_count_more() {
        let config = "[default]\nregion = eu-west-1\naws_access_key_id = old\ns3 =\n  region = no\n\
                      [profile other]\nregion=us-east-2\nendpoint_url = http://127.0.0.1:1\n";
        let credentials = "# mine\n[default]\naws_access_key_id = ID\naws_secret_access_key=a=b/c+d==\n\
                           [other]\naws_access_key_id = ID2\naws_secret_access_key = S2\naws_session_token = T2\n";
        let first = profile(None, config, credentials).unwrap();
        assert_eq!(first.keys, Some(("ID".into(), "a=b/c+d==".into())));
        assert_eq!(
            (first.region.as_deref(), first.token),
            (Some("eu-west-1"), None)
        );
        let other = profile(Some("other"), config, credentials).unwrap();
        assert_eq!(
            (other.region.as_deref(), other.token.as_deref()),
            (Some("us-east-2"), Some("T2"))
        );
        assert_eq!(other.endpoint.as_deref(), Some("http://127.0.0.1:1"));
    }

    #[test]
    fn a_profile_that_is_named_must_be_there_and_the_default_need_not() {
        assert_eq!(
            profile(Some("x"), "", "").err().unwrap().kind(),
            ErrorKind::Config
        );
        assert!(profile(None, "", "").unwrap().keys.is_none());
        assert!(Profile::read(None, &|_| None).unwrap().keys.is_none());
    }

    #[test]
    fn what_gets_credentials_from_elsewhere_is_noticed() {
        let sso = profile(
            Some("s"),
            "[profile s]\nsso_session = corp\nregion = r\n",
            "",
        )
        .unwrap();
        assert_eq!((sso.elsewhere, sso.keys), (Some("sso_session"), None));
    }
}
