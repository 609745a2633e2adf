//! Settings of a cloud store: its location and credentials.

use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use datapipes::{Error, Result, opaque_debug, whole_file};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey as S3};
use object_store::azure::{AzureConfigKey as Azure, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey as Google};
use object_store::{BackoffConfig, RetryConfig};
use url::Url;

use super::link::{Connector, Settings, deepest};
use super::profile::Profile;
use super::{Client, Cloud};
use crate::stores::redacted;

/// Makes a client of a builder of `object_store`. What the builders have in common belongs to no
/// trait.
macro_rules! client {
    ($self:ident, $builder:ident, $connector:ident, $plain:ident) => {{
        let mut builder = $builder
            .with_retry(once())
            .with_client_options($connector.options($plain))
            .with_http_connector($connector.clone());
        if $self.anonymous {
            builder = builder.with_skip_signature(true);
        }
        let store = Arc::new(builder.build().map_err(|error| $self.refused(&error))?);
        Client::new(store.clone(), Some(store))
    }};
}

/// Location and credentials of a cloud store. [`build`](CloudBuilder::build) makes the store.
///
/// Settings of the builder take precedence over the URL, the URL over the environment, and the
/// environment over files.
///
/// | | environment | files |
/// |---|---|---|
/// | S3 | `AWS_ACCESS_KEY_ID`, `AWS_SECRET_ACCESS_KEY`, `AWS_SESSION_TOKEN`, `AWS_REGION`, `AWS_DEFAULT_REGION`, `AWS_ENDPOINT_URL`, `AWS_ENDPOINT_URL_S3`, `AWS_PROFILE`, `AWS_CA_BUNDLE`, `AWS_SKIP_SIGNATURE`; those of roles by web identity, ECS and EKS | keys, region and endpoint of a profile in `~/.aws/credentials` and `~/.aws/config`, or where `AWS_SHARED_CREDENTIALS_FILE` and `AWS_CONFIG_FILE` say |
/// | Google | `GOOGLE_APPLICATION_CREDENTIALS`, `GOOGLE_SERVICE_ACCOUNT`, `GOOGLE_SERVICE_ACCOUNT_KEY` | the files of `gcloud auth application-default login` |
/// | Azure | `AZURE_STORAGE_ACCOUNT_NAME`, `AZURE_STORAGE_ACCOUNT_KEY`, `AZURE_STORAGE_SAS_TOKEN`, `AZURE_CLIENT_ID`, `AZURE_CLIENT_SECRET`, `AZURE_TENANT_ID`, `AZURE_FEDERATED_TOKEN_FILE` | – |
///
/// If none of these exist, the service of the machine that hands out credentials is asked. Of an
/// AWS profile only static keys are read. A profile that gets its keys by single sign-on, from a
/// program or by assuming a role is an error that says so; `aws configure export-credentials
/// --format env` turns such credentials into variables.
///
/// HTTP without TLS is used only if the endpoint begins with `http://`. Redirects are not followed,
/// so that no credentials go to another host. Proxies of the environment are used only if
/// [requested](CloudBuilder::proxies_of_environment).
#[derive(Clone)]
#[must_use]
pub struct CloudBuilder {
    service: Service,
    bucket: String,
    prefix: String,
    /// URL for messages, with a `/` at the end.
    url: String,
    endpoint: Option<String>,
    region: Option<String>,
    profile: Option<String>,
    account: Option<String>,
    keys: Option<(String, String)>,
    token: Option<String>,
    anonymous: bool,
    proxies: bool,
    connect: Duration,
    stall: Duration,
    roots: Vec<Vec<u8>>,
    options: Vec<(String, String)>,
    /// Replacement for the environment, for tests.
    environment: Option<Arc<Vec<(String, String)>>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Service {
    S3,
    Gcs,
    Azure,
}

impl CloudBuilder {
    /// Parses a URL: `s3://bucket/prefix`, `gs://bucket/prefix`, `az://container/prefix`, or
    /// `abfss://container@account.dfs.core.windows.net/prefix`.
    ///
    /// Keys of the store are relative to the prefix, which is a folder: a `/` is added to it.
    /// Characters may be percent-encoded, and `?`, `#` and `%` must be. The query may hold
    /// `endpoint`, `region`, `profile`, `account`, `anonymous` (`true` or `false`) and
    /// `virtual_hosted`.
    ///
    /// # Errors
    /// `Config` for any other URL. A URL with a user and a password is refused: URLs end up in
    /// logs.
    pub fn parse(url: &str) -> Result<Self> {
        let shown = redacted(url);
        let wrong = |what: &str| Error::config(format!("{shown}: {what}"));
        // The parser's own message could quote the URL.
        let parsed = Url::parse(url).map_err(|_| wrong("this is not a URL"))?;
        let service = match parsed.scheme() {
            "s3" | "s3a" => Service::S3,
            "gs" | "gcs" => Service::Gcs,
            "az" | "azure" | "abfs" | "abfss" => Service::Azure,
            _ => {
                return Err(wrong(
                    "not a URL of S3 (s3://), Google (gs://) or Azure (az://, abfss://)",
                ));
            }
        };
        let host = parsed.host_str().unwrap_or_default();
        let (user, has_secret) = (parsed.username(), parsed.password().is_some());
        let by_account = matches!(parsed.scheme(), "abfs" | "abfss") && !user.is_empty();
        if has_secret || !user.is_empty() && !by_account {
            return Err(wrong(
                "credentials do not belong in a URL: set them in the environment or the builder",
            ));
        }
        if parsed.port().is_some() || parsed.fragment().is_some() {
            return Err(wrong(
                "a bucket has no port, and a # in a key is written %23",
            ));
        }
        let decode = |text: &str| {
            let text = percent_encoding::percent_decode_str(text).decode_utf8();
            text.map(|text| text.into_owned())
                .map_err(|_| wrong("what is percent-encoded is not UTF-8"))
        };
        let (bucket, account, endpoint) = match by_account {
            false => (decode(host)?, None, None),
            true => {
                let account = host.split('.').next().unwrap_or_default().to_owned();
                let endpoint = match host.split_once('.').map(|(_, rest)| rest) {
                    Some("dfs.core.windows.net" | "blob.core.windows.net") | None => None,
                    Some(rest) => Some(format!(
                        "https://{account}.{}",
                        rest.replacen("dfs.", "blob.", 1)
                    )),
                };
                (decode(user)?, Some(account), endpoint)
            }
        };
        let mut builder = CloudBuilder::new(service, &bucket, &decode(parsed.path())?);
        let place = if by_account {
            format!("{bucket}@{host}")
        } else {
            bucket
        };
        builder.url = format!("{}://{place}/{}", parsed.scheme(), builder.prefix);
        builder.account = account;
        builder.endpoint = endpoint;
        for (key, value) in parsed.query_pairs() {
            builder = match (&*key, &*value) {
                ("endpoint", value) => builder.endpoint(value),
                ("region", value) => builder.region(value),
                ("profile", value) => builder.profile(value),
                ("account", value) => builder.account(value),
                ("anonymous", "true") => builder.anonymous(),
                ("virtual_hosted", "true") => {
                    builder.option("virtual_hosted_style_request", "true")
                }
                ("anonymous" | "virtual_hosted", "false") => builder,
                _ => {
                    return Err(wrong(
                        "in a query there may be endpoint, region, profile, account, anonymous=true, virtual_hosted=true",
                    ));
                }
            };
        }
        Ok(builder)
    }

    #[cfg(test)]
    pub(super) fn in_environment(self, variables: &[(&str, &str)]) -> Self {
        let variables = variables
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        CloudBuilder {
            environment: Some(Arc::new(variables.collect())),
            ..self
        }
    }

    pub(super) fn s3(place: &str) -> Self {
        CloudBuilder::at(Service::S3, place)
    }
    pub(super) fn gcs(place: &str) -> Self {
        CloudBuilder::at(Service::Gcs, place)
    }
    pub(super) fn azure(place: &str) -> Self {
        CloudBuilder::at(Service::Azure, place)
    }

    fn at(service: Service, place: &str) -> Self {
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        CloudBuilder::new(service, bucket, prefix)
    }

    fn new(service: Service, bucket: &str, prefix: &str) -> Self {
        let mut prefix = prefix.trim_start_matches('/').to_owned();
        if !prefix.is_empty() && !prefix.ends_with('/') {
            prefix.push('/');
        }
        let scheme = match service {
            Service::S3 => "s3",
            Service::Gcs => "gs",
            Service::Azure => "az",
        };
        CloudBuilder {
            service,
            url: format!("{scheme}://{bucket}/{prefix}"),
            bucket: bucket.to_owned(),
            prefix,
            endpoint: None,
            region: None,
            profile: None,
            account: None,
            keys: None,
            token: None,
            anonymous: false,
            proxies: false,
            connect: Duration::from_secs(5),
            stall: Duration::from_secs(30),
            roots: Vec::new(),
            options: Vec::new(),
            environment: None,
        }
    }

    datapipes::setters! {
        /// Sets the address of the service, if it is not the provider's own: `https://host:port`, or
        /// `http://…` for a service without TLS.
        endpoint(url: impl Into<String>) => endpoint = Some(url.into());

        /// Sets the region of an S3 bucket. Defaults to `us-east-1`.
        region(name: impl Into<String>) => region = Some(name.into());

        /// Sets the AWS profile, in place of `AWS_PROFILE` and of the keys of the environment.
        profile(name: impl Into<String>) => profile = Some(name.into());

        /// Sets the Azure storage account.
        account(name: impl Into<String>) => account = Some(name.into());

        /// Sets access key and secret key of S3, or account and account key of Azure.
        keys(id: impl Into<String>, secret: impl Into<String>) => keys = Some((id.into(), secret.into()));

        /// Sets the session token that belongs to the keys of S3, or a bearer token of Google or Azure.
        token(token: impl Into<String>) => token = Some(token.into());

        /// Makes requests without credentials, for a public bucket.
        anonymous() => anonymous = true;

        /// Uses the proxies that `HTTPS_PROXY`, `HTTP_PROXY` and `NO_PROXY` name.
        proxies_of_environment() => proxies = true;

        /// Sets the maximum time to make a connection. Defaults to 5 seconds.
        connect_timeout(time: Duration) => connect = time;

        /// Sets the maximum time until an answer begins, and of each pause in it. Defaults to 30
        /// seconds. There is no limit for the whole answer.
        stall_timeout(time: Duration) => stall = time;

        /// Trusts these certificates, in PEM, in addition to the system's.
        certificates(pem: impl Into<Vec<u8>>) => roots.push(pem.into());

        /// Sets any other option of `object_store`, by the name of its configuration key:
        /// `virtual_hosted_style_request`, `request_payer`, `service_account_key`, `sas_token`. Options
        /// of connections (`timeout`, `proxy_url`) have no effect, since this crate makes the
        /// connections.
        option(key: impl Into<String>, value: impl Into<String>) => options.push((key.into(), value.into()));
    }

    /// Returns the store. Reads files with credentials, and makes no connection yet.
    ///
    /// # Errors
    /// `Config` for invalid settings, `NotFound` or `Denied` for files that cannot be read,
    /// `Unsupported` for an AWS profile whose credentials come from elsewhere.
    pub fn build(self) -> Result<Cloud> {
        if self.bucket.is_empty() {
            return Err(self.wrong("there is no bucket"));
        }
        let mut roots = Vec::new();
        let bundle = self
            .env("AWS_CA_BUNDLE")
            .filter(|_| self.service == Service::S3);
        let bundle = bundle
            .as_deref()
            .map(|path| self.file(Path::new(path)))
            .transpose()?;
        for pem in self.roots.iter().chain(&bundle) {
            let certificates = reqwest::Certificate::from_pem_bundle(pem);
            roots.extend(certificates.map_err(|_| self.wrong("the certificates are not PEM"))?);
        }
        let connector = Connector::new(Settings {
            connect: self.connect,
            stall: self.stall,
            proxies: self.proxies,
            roots,
        });
        let client = self.connect(&connector)?;
        Ok(Cloud::new(
            self.url.clone(),
            self.prefix.clone(),
            client,
            Some((self, connector)),
        ))
    }

    /// Returns a client with the current credentials.
    pub(super) fn connect(&self, connector: &Connector) -> Result<Client> {
        match self.service {
            Service::S3 => self.connect_s3(connector),
            Service::Gcs => self.connect_gcs(connector),
            Service::Azure => self.connect_azure(connector),
        }
    }

    fn connect_s3(&self, connector: &Connector) -> Result<Client> {
        let mut builder = AmazonS3Builder::new();
        // Keys and token of the environment are used together or not at all.
        let own = self.keys.is_some()
            || self.profile.is_some()
            || self.env("AWS_ACCESS_KEY_ID").is_none();
        for (key, value) in self.known("AWS_") {
            if !(own && matches!(key, S3::AccessKeyId | S3::SecretAccessKey | S3::Token)) {
                builder = builder.with_config(key, value);
            }
        }
        let value = |builder: &AmazonS3Builder, key: S3| builder.get_config_value(&key);
        let chosen = self.profile.clone().or_else(|| self.env("AWS_PROFILE"));
        let profile = Profile::read(chosen.as_deref(), &|name| self.env(name))
            .map_err(|error| error.within(&self.url))?;
        if value(&builder, S3::Region).is_none()
            && let Some(region) = &profile.region
        {
            builder = builder.with_region(region);
        }
        if value(&builder, S3::Endpoint).is_none()
            && let Some(endpoint) = &profile.endpoint
        {
            builder = builder.with_endpoint(endpoint);
        }
        builder = self.s3_credentials(builder, &profile)?;
        if let Some(region) = &self.region {
            builder = builder.with_region(region);
        }
        for (key, text) in &self.options {
            builder = builder.with_config(self.key(key)?, text);
        }
        let endpoint = match &self.endpoint {
            Some(endpoint) => Some(endpoint.clone()),
            None => value(&builder, S3::S3Endpoint).or_else(|| value(&builder, S3::Endpoint)),
        };
        let plain = self.check(endpoint.as_deref())?;
        if let Some(endpoint) = endpoint.clone() {
            builder = builder.with_config(S3::S3Endpoint, endpoint);
        }
        let builder = builder.with_bucket_name(&self.bucket);
        Ok(client!(self, builder, connector, plain).at(endpoint, None))
    }

    /// Adds the keys that were given, those of the environment, or those of a profile.
    fn s3_credentials(
        &self,
        builder: AmazonS3Builder,
        profile: &Profile,
    ) -> Result<AmazonS3Builder> {
        let with_keys =
            |builder: AmazonS3Builder, (id, secret): &(String, String), token: &Option<String>| {
                let builder = builder
                    .with_access_key_id(id)
                    .with_secret_access_key(secret);
                token.iter().fold(builder, AmazonS3Builder::with_token)
            };
        let is_known = |key: S3| builder.get_config_value(&key).is_some();
        let has_role = is_known(S3::WebIdentityTokenFile) && is_known(S3::RoleArn);
        let has_keys = is_known(S3::AccessKeyId) || has_role;
        if let Some(keys) = &self.keys {
            return Ok(with_keys(builder, keys, &self.token));
        }
        if self.anonymous || has_keys && self.profile.is_none() {
            return Ok(builder);
        }
        if let Some(keys) = &profile.keys {
            return Ok(with_keys(builder, keys, &profile.token));
        }
        if let Some(setting) = profile.elsewhere {
            return Err(Error::unsupported(format!(
                "{}: the AWS profile gets its keys by {setting}, which is not read here; \
                     `aws configure export-credentials --format env` prints them as variables",
                self.url
            )));
        }
        let is_off = |value: String| value.eq_ignore_ascii_case("true");
        if self.env("AWS_EC2_METADATA_DISABLED").is_some_and(is_off)
            && self.options.is_empty()
            && self.env("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI").is_none()
            && self.env("AWS_CONTAINER_CREDENTIALS_FULL_URI").is_none()
        {
            return Err(self.wrong("there are no credentials"));
        }
        Ok(builder)
    }

    fn connect_gcs(&self, connector: &Connector) -> Result<Client> {
        let mut builder = GoogleCloudStorageBuilder::new();
        if let Some(path) = self.env("SERVICE_ACCOUNT") {
            builder = builder.with_service_account_path(path);
        }
        for (key, value) in self.known("GOOGLE_") {
            builder = builder.with_config(key, value);
        }
        if let Some(token) = &self.token {
            builder = builder.with_bearer_token(token);
        }
        for (key, value) in &self.options {
            builder = builder.with_config(self.key(key)?, value);
        }
        let endpoint = self
            .endpoint
            .clone()
            .or_else(|| builder.get_config_value(&Google::BaseUrl));
        let plain = self.check(endpoint.as_deref())?;
        if let Some(endpoint) = &endpoint {
            builder = builder.with_base_url(endpoint.trim_end_matches('/'));
        }
        let builder = builder.with_bucket_name(&self.bucket);
        Ok(client!(self, builder, connector, plain).at(endpoint, None))
    }

    fn connect_azure(&self, connector: &Connector) -> Result<Client> {
        let mut builder = MicrosoftAzureBuilder::new();
        for (key, value) in self.known("AZURE_") {
            builder = builder.with_config(key, value);
        }
        if let Some((account, key)) = &self.keys {
            builder = builder.with_account(account).with_access_key(key);
        }
        if let Some(account) = &self.account {
            builder = builder.with_account(account);
        }
        if let Some(token) = &self.token {
            builder = builder.with_bearer_token_authorization(token);
        }
        for (key, value) in &self.options {
            builder = builder.with_config(self.key(key)?, value);
        }
        let endpoint = self
            .endpoint
            .clone()
            .or_else(|| builder.get_config_value(&Azure::Endpoint));
        let plain = self.check(endpoint.as_deref())?;
        let account = builder.get_config_value(&Azure::AccountName);
        if let Some(endpoint) = endpoint.clone() {
            builder = builder.with_endpoint(endpoint);
        }
        let builder = builder.with_container_name(&self.bucket);
        Ok(client!(self, builder, connector, plain).at(endpoint, account))
    }

    /// Returns the variables of the environment that `object_store` knows.
    fn known<K: FromStr>(&self, prefix: &str) -> Vec<(K, String)> {
        let all = self
            .variables()
            .into_iter()
            .filter(|(name, _)| name.starts_with(prefix));
        all.filter_map(|(name, value)| Some((name.to_ascii_lowercase().parse().ok()?, value)))
            .collect()
    }

    fn variables(&self) -> Vec<(String, String)> {
        match &self.environment {
            Some(variables) => variables.to_vec(),
            None => std::env::vars_os()
                .filter_map(|(name, value)| {
                    Some((name.into_string().ok()?, value.into_string().ok()?))
                })
                .collect(),
        }
    }

    /// Returns a variable of the environment that is set, and not empty.
    fn env(&self, name: &str) -> Option<String> {
        let value = match &self.environment {
            Some(variables) => variables
                .iter()
                .find(|(key, _)| key == name)
                .map(|(_, value)| value.clone()),
            None => std::env::var(name).ok(),
        };
        value.filter(|value| !value.is_empty())
    }

    fn key<K: FromStr>(&self, name: &str) -> Result<K> {
        name.parse()
            .map_err(|_| self.wrong(&format!("there is no option {name:?}")))
    }

    fn file(&self, path: &Path) -> Result<Vec<u8>> {
        whole_file::read(path, 16 << 20)
            .map_err(|error| Error::io(error).within(path.display()).within(&self.url))
    }

    /// Returns true if an endpoint has no TLS.
    fn check(&self, endpoint: Option<&str>) -> Result<bool> {
        let Some(endpoint) = endpoint else {
            return Ok(false);
        };
        // The message shows nothing of the value: it may be a key, if the user confused two
        // settings.
        let wrong = |what: &str| self.wrong(&format!("the endpoint {what}"));
        let parsed = Url::parse(endpoint).map_err(|_| wrong("is not a URL"))?;
        if !parsed.username().is_empty() || parsed.password().is_some() || parsed.query().is_some()
        {
            return Err(wrong("may have neither user nor password nor query"));
        }
        match parsed.scheme() {
            "http" => Ok(true),
            "https" => Ok(false),
            _ => Err(wrong("begins with neither https:// nor http://")),
        }
    }

    fn wrong(&self, what: &str) -> Error {
        Error::config(format!("{}: {what}", self.url))
    }

    /// Returns the error of settings that `object_store` refuses. Its messages quote names, never
    /// keys; but the message about a file of credentials that cannot be parsed is not quoted either
    /// way.
    fn refused(&self, error: &object_store::Error) -> Error {
        let words = deepest(error);
        let variables = self.variables();
        let secrets = self
            .keys
            .iter()
            .flat_map(|(id, secret)| [id, secret])
            .chain(&self.token);
        let options = self.options.iter().map(|(_, value)| value);
        let variables = variables
            .iter()
            .filter(|(name, _)| is_secret(name))
            .map(|(_, value)| value);
        let quotes = secrets
            .chain(options)
            .chain(variables)
            .any(|secret| !secret.is_empty() && words.contains(&**secret));
        self.wrong(if quotes {
            "the credentials are not what they should be"
        } else {
            &words
        })
    }
}

fn is_secret(variable: &str) -> bool {
    ["KEY", "SECRET", "TOKEN", "PASSWORD"]
        .iter()
        .any(|part| variable.contains(part))
}

/// Disables retries: they are left to a wrapper, which knows the deadline.
fn once() -> RetryConfig {
    RetryConfig {
        max_retries: 0,
        retry_timeout: Duration::ZERO,
        backoff: BackoffConfig::default(),
    }
}

// The location, and never the credentials.
opaque_debug! { CloudBuilder { url, region, anonymous } }
