//! Chat templates, and conversations tokenized by them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use datapipes::{Arity, Context, Error, ErrorKind, Hints, Items, Pipe, Result, Weigh, Wire};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, Value, context};

use super::Tokenize;
use crate::Tokens;

/// A message of a conversation. Other fields of a message in JSON are ignored.
#[derive(Clone, Debug, PartialEq, Eq, serde::Deserialize, serde::Serialize, Wire)]
pub struct Message {
    /// Role of the speaker: `system`, `user`, `assistant`, or what else the template knows.
    pub role: String,
    /// Text of the message.
    pub content: String,
}

impl Message {
    /// Makes a message.
    pub fn new(role: impl Into<String>, content: impl Into<String>) -> Self {
        Message {
            role: role.into(),
            content: content.into(),
        }
    }
}

/// A chat template: the text that a conversation becomes.
///
/// Templates are Jinja, as models on the Hugging Face hub have them in `tokenizer_config.json`, and
/// run with `trim_blocks`, `lstrip_blocks`, `raise_exception` and the methods of Python's strings and
/// lists, as `apply_chat_template` runs them. They cannot read files. What is different:
///
/// - A message has a role and a content, both text; it has no `tool_calls`.
/// - Variables besides `messages`, `add_generation_prompt`, `bos_token` and `eos_token` are those that
///   [`variable`](ChatTemplate::variable) sets: `tools`, `enable_thinking`, `date_string`.
/// - There is no `strftime_now`: tokens would depend on the day. Templates ask if it is defined.
/// - `tojson` sorts the keys of objects, and escapes `<`, `>`, `&` and `'`.
///
/// # Examples
/// ```
/// use datapipes_text::{ChatTemplate, Message};
/// let template = "{% for message in messages %}<{{ message.role }}>{{ message.content | trim }}{% endfor %}\
///                 {% if add_generation_prompt %}<assistant>{% endif %}";
/// let template = ChatTemplate::new(template)?;
/// assert_eq!(template.render(&[Message::new("user", " Hello ")], true)?, "<user>Hello<assistant>");
/// # Ok::<(), datapipes::Error>(())
/// ```
#[derive(Clone, Debug)]
#[must_use]
pub struct ChatTemplate {
    environment: Arc<Environment<'static>>,
    bos: String,
    eos: String,
    variables: BTreeMap<String, serde_json::Value>,
}

const NAME: &str = "chat_template";

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// `Config` if it is no template, with the line.
    pub fn new(source: impl Into<String>) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment.set_syntax(syntax.expect("the delimiters are the usual ones"));
        environment
            .set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<Value, minijinja::Error> {
                Err(minijinja::Error::new(
                    minijinja::ErrorKind::InvalidOperation,
                    message,
                ))
            },
        );
        environment
            .add_template_owned(NAME, source.into())
            .map_err(|error| failed(ErrorKind::Config, error))?;
        Ok(ChatTemplate {
            environment: Arc::new(environment),
            bos: String::new(),
            eos: String::new(),
            variables: BTreeMap::new(),
        })
    }

    /// Reads the template in the content of a `tokenizer_config.json`, with the tokens that begin
    /// and end a text. Of several templates it is the one called `default`.
    ///
    /// # Errors
    /// `Corrupt` if the content is no JSON, `NotFound` if it has no template, and those of
    /// [`new`](ChatTemplate::new).
    pub fn from_tokenizer_config(json: impl AsRef<[u8]>) -> Result<Self> {
        let config: serde_json::Value = serde_json::from_slice(json.as_ref())
            .map_err(|error| Error::corrupt("tokenizer_config.json").with_source(error))?;
        let source = match &config["chat_template"] {
            serde_json::Value::Array(named) => named
                .iter()
                .find(|template| template["name"] == "default")
                .and_then(|template| template["template"].as_str()),
            template => template.as_str(),
        };
        let source = source
            .ok_or_else(|| Error::not_found("tokenizer_config.json has no \"chat_template\""))?;
        let token = |name: &str| {
            let token = &config[name];
            token
                .as_str()
                .or(token["content"].as_str())
                .unwrap_or_default()
                .to_owned()
        };
        Ok(ChatTemplate::new(source)?.tokens(token("bos_token"), token("eos_token")))
    }

    /// Sets the variables `bos_token` and `eos_token`. Defaults to empty texts.
    pub fn tokens(mut self, bos: impl Into<String>, eos: impl Into<String>) -> Self {
        self.bos = bos.into();
        self.eos = eos.into();
        self
    }

    /// Sets a variable of the template, for all conversations: `enable_thinking`, `date_string`.
    ///
    /// # Examples
    /// ```
    /// use datapipes_text::{ChatTemplate, Message};
    /// let template = ChatTemplate::new("{{ date }}: {% if thinks %}{{ messages[0].content }}{% endif %}")?;
    /// let template = template.variable("date", "1 May").variable("thinks", true);
    /// assert_eq!(template.render(&[Message::new("user", "Hello")], false)?, "1 May: Hello");
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn variable(
        mut self,
        name: impl Into<String>,
        value: impl Into<serde_json::Value>,
    ) -> Self {
        self.variables.insert(name.into(), value.into());
        self
    }

    /// Describes the template and its variables.
    fn settings(&self) -> String {
        let template = self.environment.get_template(NAME).expect("it was added");
        let all = (template.source(), &self.bos, &self.eos, &self.variables);
        let key = blake3::hash(format!("{all:?}").as_bytes());
        format!("template {}", &key.to_hex()[..16])
    }

    /// Returns the text of a conversation, with the beginning of the model's answer if
    /// `add_generation_prompt` is true.
    ///
    /// # Errors
    /// `Corrupt` with the line of the template and the reason, also that of a `raise_exception`.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String> {
        let message = |message: &Message| {
            Value::from_pairs([("role", &*message.role), ("content", &*message.content)])
        };
        let variables = context! {
            messages => messages.iter().map(message).collect::<Vec<Value>>(),
            add_generation_prompt => add_generation_prompt,
            bos_token => &*self.bos,
            eos_token => &*self.eos,
            ..Value::from_pairs(self.variables.iter().map(|(name, json)| (&**name, value(json))))
        };
        let template = self.environment.get_template(NAME).expect("it was added");
        template
            .render(variables)
            .map_err(|error| failed(ErrorKind::Corrupt, error))
    }
}

/// Returns a value of JSON as one of a template.
fn value(json: &serde_json::Value) -> Value {
    use serde_json::Value as Json;
    match json {
        Json::Null => Value::from(()),
        Json::Bool(flag) => Value::from(*flag),
        Json::String(text) => Value::from(text),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(number), _) => Value::from(number),
            (None, Some(number)) => Value::from(number),
            (None, None) => Value::from(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::Array(list) => Value::from(list.iter().map(value).collect::<Vec<_>>()),
        Json::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(name, json)| (&**name, value(json))))
        }
    }
}

fn failed(kind: ErrorKind, error: minijinja::Error) -> Error {
    Error::new(kind, "chat template").with_source(error)
}

/// Tokenizes conversations; made by [`Tokenize::chat`].
#[derive(Clone, Debug)]
#[must_use]
pub struct Chat {
    tokenize: Tokenize,
    template: ChatTemplate,
    trained: Vec<String>,
}

impl Tokenize {
    /// Tokenizes conversations by a template, for a graph of `Vec<`[`Message`]`>`: the items are
    /// [`Tokens`] whose labels are the ids of what the assistant says, and −100 for all else, the
    /// prompt. The tokens are those of the whole text, so that none is other than the model will
    /// see.
    ///
    /// The assistant's part of a message is what the template adds to the text of the messages
    /// before it and of the generation prompt; it usually includes a token that ends the turn. A
    /// token that is partly the prompt's is not trained. A conversation that
    /// [`max_tokens`](Tokenize::max_tokens) cuts has not ended, so that the token that
    /// [`end`](Tokenize::end) puts there is not trained.
    ///
    /// Runs on the CPU workers; order is kept.
    ///
    /// # Errors
    /// `Corrupt` in place of a conversation that the template refuses; `Unsupported` in place of
    /// one that it renders otherwise once messages follow, so that nobody knows what is the
    /// assistant's.
    ///
    /// # Examples
    /// ```
    /// # #[cfg(feature = "tokenizers")] {
    /// use datapipes::Graph;
    /// use datapipes_text::{ChatTemplate, HfTokenizer, Message, Pack, Tokenize, prelude::*};
    ///
    /// # let json = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/words.json"));
    /// let template = "{% for m in messages %}{{ m.role }} {{ m.content }} . {% endfor %}\
    ///                 {% if add_generation_prompt %}assistant {% endif %}";
    /// let tokenizer = HfTokenizer::from_bytes(json)?; // of the words in it
    /// let chat = Tokenize::new(tokenizer).chat(ChatTemplate::new(template)?);
    /// let talk = vec![Message::new("user", "hello"), Message::new("assistant", "good day")];
    /// let row = Graph::from_vec(vec![talk]).pipe(chat).pack(Pack::concat(7)).collect()?.remove(0);
    /// assert_eq!(row.ids, [1, 3, 0, 2, 4, 5, 0]);
    /// assert_eq!(row.labels, [-100, -100, -100, 4, 5, 0, -100]); // good day .
    /// # }
    /// # Ok::<(), datapipes::Error>(())
    /// ```
    pub fn chat(self, template: ChatTemplate) -> Chat {
        Chat {
            tokenize: Tokenize {
                offsets: true,
                ..self
            },
            template,
            trained: vec!["assistant".to_owned()],
        }
    }
}

impl Chat {
    /// Sets the roles whose messages are trained. Defaults to `assistant`.
    pub fn train<R: Into<String>>(self, roles: impl IntoIterator<Item = R>) -> Self {
        Chat {
            trained: roles.into_iter().map(Into::into).collect(),
            ..self
        }
    }

    /// Returns the tokens of one conversation.
    ///
    /// # Errors
    /// As [`Tokenize::chat`] has them.
    pub fn tokens(&self, messages: &[Message]) -> Result<Tokens> {
        let text = self.template.render(messages, false)?;
        let trained = self.trained_parts(messages, &text)?;
        let (mut tokens, is_cut) = self.tokenize.tokens_and_cut(&text)?;
        let offsets = tokens.offsets.take().unwrap_or_default();
        if offsets.len() != tokens.ids.len() {
            let message = "the tokenizer gives no offsets, which tell the prompt from the answer";
            return Err(Error::unsupported(message));
        }
        // An end that follows the last answer belongs to it, unless it is in the middle of it.
        let is_in = |token: &Range<u32>, part: &Range<usize>| {
            let (begin, end) = (token.start as usize, token.end as usize);
            let is_end = !is_cut && end == text.len();
            begin >= part.start && end <= part.end && (begin < end || is_end)
        };
        let label =
            |(&id, token): (&u32, &Range<u32>)| match trained.iter().any(|part| is_in(token, part))
            {
                true => i64::from(id),
                false => -100,
            };
        tokens.labels = Some(tokens.ids.iter().zip(&offsets).map(label).collect());
        Ok(tokens)
    }

    /// Returns the parts of the text that are trained.
    fn trained_parts(&self, messages: &[Message], text: &str) -> Result<Vec<Range<usize>>> {
        let mut parts = Vec::new();
        for (at, message) in messages.iter().enumerate() {
            if !self.trained.contains(&message.role) {
                continue;
            }
            let prompt = self.template.render(&messages[..at], true)?;
            let turn = self.template.render(&messages[..=at], false)?;
            if !turn.starts_with(&prompt) || !text.starts_with(&turn) {
                return Err(Error::unsupported(format!(
                    "the template does not render the first {} messages as the beginning of all {}, so that nobody \
                     knows what is message {at}'s",
                    at + 1,
                    messages.len()
                )));
            }
            parts.push(prompt.len()..turn.len());
        }
        Ok(parts)
    }
}

impl Pipe<Vec<Message>> for Chat {
    type Out = Tokens;

    fn apply(&self, input: Items<Vec<Message>>, cx: &Context) -> Items<Tokens> {
        let this = self.clone();
        input.each(cx, move |item| {
            Some(item.try_map(|messages| this.tokens(&messages)))
        })
    }
    fn name(&self) -> String {
        "tokenize_chat".to_owned()
    }
    fn hints(&self) -> Hints {
        let hints = Pipe::<String>::hints(&self.tokenize);
        let (template, trained) = (self.template.settings(), self.trained.join(" and "));
        let settings = format!("{}, {template}, trains {trained}", hints.settings);
        hints.settings(settings).arity(Arity::One)
    }
    fn weigh(&self, tokens: &Tokens) -> Option<usize> {
        Some(tokens.weigh())
    }
}
