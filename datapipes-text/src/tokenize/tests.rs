//! Tests of tokenizing, with a tokenizer of bytes.

use datapipes::testing::{check_pipe, check_wire};
use datapipes::{DataLoader, OnError};

use super::*;
use datapipes::ErrorKind;

/// A tokenizer of bytes, with two tokens more.
struct OfBytes;

impl Tokenizer for OfBytes {
    fn encode(&self, text: &str, offsets: bool) -> Result<Tokens> {
        if text.contains('\0') {
            return Err(Error::corrupt("a zero byte"));
        }
        let ids: Vec<u32> = text
            .bytes()
            .map(|byte| if byte == b'?' { 900 } else { byte.into() })
            .collect();
        let offsets = offsets.then(|| (0..ids.len() as u32).map(|at| at..at + 1).collect());
        Ok(Tokens {
            ids,
            offsets,
            ..Tokens::default()
        })
    }
    fn decode(&self, ids: &[u32]) -> Result<String> {
        Ok(ids.iter().map(|&id| id as u8 as char).collect())
    }
    fn vocab_size(&self) -> usize {
        258
    }
    fn token_to_id(&self, token: &str) -> Option<u32> {
        ["<s>", "</s>"]
            .iter()
            .position(|&known| known == token)
            .map(|at| 256 + at as u32)
    }
}

#[test]
fn keeps_the_contract() {
    let texts = ["a", "", "long text", "é", "b", "c", "d"];
    check_pipe(
        &Tokenize::new(OfBytes).end("</s>").offsets(),
        texts.to_vec(),
    );
    check_wire(&Tokens {
        labels: Some(vec![-100, 2]),
        offsets: Some(vec![0..1, 1..3]),
        ids: vec![1, 2],
    });
}

#[test]
fn tokens_are_put_around_and_a_text_is_cut_between_them() {
    let tokenize = Tokenize::new(Arc::new(OfBytes))
        .begin("<s>")
        .end("</s>")
        .offsets();
    let tokens = tokenize.tokens("abc").unwrap();
    assert_eq!(tokens.ids, [256, 97, 98, 99, 257]);
    assert_eq!(tokens.offsets.unwrap(), [0..0, 0..1, 1..2, 2..3, 3..3]);
    let tokens = tokenize.max_tokens(4).tokens("abc").unwrap();
    assert_eq!(tokens.ids, [256, 97, 98, 257]);
    assert_eq!(tokens.offsets.unwrap(), [0..0, 0..1, 1..2, 3..3]);
}

#[test]
fn an_error_names_the_document() {
    let texts = vec![
        b"ok".to_vec(),
        b"a\xff".to_vec(),
        b"\0".to_vec(),
        b"why?".to_vec(),
        b"ok".to_vec(),
    ];
    let graph = Graph::from_vec(texts).tokenize(Tokenize::new(OfBytes));
    let loader = DataLoader::builder(graph)
        .workers(2)
        .on_error(OnError::skip(9))
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 2);
    let said: Vec<String> = loader
        .stats()
        .unwrap()
        .skipped_items
        .into_iter()
        .map(|skipped| skipped.error)
        .collect();
    let expected = [
        "tokenize: 0:1: corrupt: byte 1 of the text is no UTF-8",
        "tokenize: 0:2: corrupt: a zero byte",
        "tokenize: 0:3: corrupt: the tokenizer gives id 900 and says that it has 258 tokens",
    ];
    assert_eq!(said, expected);
}

#[test]
fn a_text_that_is_too_large_is_named_with_its_size() {
    let graph = Graph::from_vec(vec!["abc", "abcd", "é", "éé!"]);
    let tokenize = Tokenize::new(OfBytes).max_bytes(3);
    let loader = DataLoader::builder(graph.tokenize(tokenize))
        .on_error(OnError::skip(9))
        .build()
        .unwrap();
    assert_eq!(loader.epoch(0).blocking().count(), 2);
    let skipped = loader.stats().unwrap().skipped_items;
    let said: Vec<&str> = skipped.iter().map(|skipped| &*skipped.error).collect();
    let expected = [
        "tokenize: 0:1: limit reached: a text of 4 bytes, where at most 3 are allowed",
        "tokenize: 0:3: limit reached: a text of 5 bytes, where at most 3 are allowed",
    ];
    assert_eq!(said, expected);
}

/// A tokenizer of as many tokens, which are others.
struct Shifted;

impl Tokenizer for Shifted {
    fn encode(&self, text: &str, offsets: bool) -> Result<Tokens> {
        let mut tokens = OfBytes.encode(text, offsets)?;
        tokens.ids.iter_mut().for_each(|id| *id = (*id + 1) % 256);
        Ok(tokens)
    }
    fn decode(&self, ids: &[u32]) -> Result<String> {
        OfBytes.decode(ids)
    }
    fn vocab_size(&self) -> usize {
        OfBytes.vocab_size()
    }
    fn token_to_id(&self, token: &str) -> Option<u32> {
        OfBytes.token_to_id(token)
    }
}

#[test]
fn another_tokenizer_is_refused_on_resume() {
    let loader = |tokenize| {
        let graph = Graph::from_vec(vec!["a", "b", "c"]).tokenize(tokenize);
        DataLoader::builder(graph).resumable().build().unwrap()
    };
    let mut epoch = loader(Tokenize::new(OfBytes)).epoch(0).blocking();
    epoch.next();
    let checkpoint = epoch.checkpoint().unwrap();
    let error = loader(Tokenize::new(Shifted))
        .resume(&checkpoint)
        .expect_err("other tokens");
    assert!(error.to_string().contains("tokenize"), "{error}");
    let rest = loader(Tokenize::new(OfBytes))
        .resume(&checkpoint)
        .unwrap()
        .blocking();
    assert_eq!(rest.count(), 2);
}

#[test]
fn wrong_settings_do_not_start() {
    let new = || Tokenize::new(OfBytes);
    for (tokenize, said) in [
        (new().end("<eos>"), "the tokenizer has no token \"<eos>\""),
        (
            new().begin("<s>").max_tokens(1),
            "no room for a token of the text",
        ),
    ] {
        let error = Graph::from_vec(vec!["a"])
            .tokenize(tokenize)
            .collect()
            .unwrap_err();
        assert!(error.to_string().contains(said), "{error}");
    }
}

#[cfg(feature = "chat")]
mod chat {
    use super::*;

    const TEMPLATE: &str = "{%- for m in messages %}\n{{ '<' + m['role'] + '>' + m.content.strip() + eos_token }}\n\
                            {%- endfor %}\n{%- if add_generation_prompt %}{{ '<assistant>' }}{% endif %}";

    fn talk() -> Vec<Message> {
        [
            ("user", " Hi "),
            ("assistant", "Yes"),
            ("user", "So"),
            ("assistant", "No"),
        ]
        .map(|(role, content)| Message::new(role, content))
        .to_vec()
    }

    fn shown(tokens: &Tokens) -> (String, String) {
        let text = OfBytes.decode(&tokens.ids).unwrap();
        let labels = tokens.labels.as_ref().unwrap().iter();
        let labels = labels.map(|&label| if label < 0 { '.' } else { label as u8 as char });
        (text, labels.collect())
    }

    #[test]
    fn what_the_assistant_says_is_trained_and_the_prompt_is_not() {
        let template = ChatTemplate::new(TEMPLATE).unwrap().tokens("", ";");
        let chat = Tokenize::new(OfBytes).chat(template.clone());
        let (text, labels) = shown(&chat.tokens(&talk()).unwrap());
        assert_eq!(text, "<user>Hi;<assistant>Yes;<user>So;<assistant>No;");
        assert_eq!(labels, "....................Yes;....................No;");
        let both = chat
            .clone()
            .train(["user", "assistant"])
            .tokens(&talk()[..1]);
        // The user's turn does not begin with the assistant's prompt.
        assert_eq!(both.unwrap_err().kind(), ErrorKind::Unsupported);
        let ended = Tokenize::new(OfBytes)
            .begin("<s>")
            .end("</s>")
            .chat(template)
            .tokens(&talk()[..2])
            .unwrap();
        let labels = ended.labels.unwrap();
        assert_eq!((labels[0], labels.last()), (-100, Some(&257)));
        check_pipe(&chat, vec![talk(), vec![], talk()[..1].to_vec()]);
    }

    #[test]
    fn a_template_is_read_from_the_config_of_a_tokenizer() {
        let config = serde_json::json!({
            "chat_template": [{"name": "tool", "template": "no"}, {"name": "default", "template": TEMPLATE}],
            "bos_token": {"content": "<s>"},
            "eos_token": "!",
        });
        let template = ChatTemplate::from_tokenizer_config(config.to_string()).unwrap();
        assert_eq!(
            template.render(&talk()[..1], true).unwrap(),
            "<user>Hi!<assistant>"
        );
        let error = ChatTemplate::from_tokenizer_config("{}").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotFound);
        let error = ChatTemplate::from_tokenizer_config("{").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }

    /// A rest that was cut off has not ended.
    #[test]
    fn an_answer_that_is_cut_does_not_learn_to_end() {
        let template = ChatTemplate::new(TEMPLATE).unwrap();
        let chat = |most: usize| {
            let tokenize = Tokenize::new(OfBytes).end("</s>").max_tokens(most);
            let tokens = tokenize.chat(template.clone()).tokens(&talk()[..2]);
            let tokens = tokens.unwrap();
            assert_eq!(tokens.ids.last(), Some(&257));
            tokens.labels.unwrap()
        };
        let whole = "<user>Hi<assistant>Yes".len() + 1;
        assert_eq!(chat(whole).last(), Some(&257));
        let cut = chat(whole - 1);
        assert_eq!(cut[whole - 4..], [i64::from(b'Y'), i64::from(b'e'), -100]);
    }

    #[test]
    fn another_template_is_refused_on_resume() {
        let loader = |template| {
            let chat = Tokenize::new(OfBytes).chat(template);
            let graph = Graph::from_vec(vec![talk(); 3]).pipe(chat);
            DataLoader::builder(graph).resumable().build().unwrap()
        };
        let template = |source: &str| ChatTemplate::new(source).unwrap().tokens("<s>", ";");
        let mut epoch = loader(template(TEMPLATE)).epoch(0).blocking();
        epoch.next().unwrap().unwrap();
        let state = epoch.checkpoint().unwrap();
        let rest = loader(template(TEMPLATE)).resume(&state).unwrap();
        assert_eq!(rest.blocking().count(), 2);
        for other in [
            template(&TEMPLATE.replace("strip", "lstrip")),
            template(TEMPLATE).tokens("<s>", "!"),
            template(TEMPLATE).tokens("<b>", ";"),
            template(TEMPLATE).variable("enable_thinking", false),
        ] {
            let error = loader(other).resume(&state).expect_err("another template");
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains("tokenize_chat"), "{error}");
        }
    }

    #[test]
    fn variables_have_the_values_that_they_are_given() {
        let source = "{{ a + 1 }} {{ b }} {{ c[1] }} {{ d.e }} {{ f is none }} {{ g is defined }}";
        let template = ChatTemplate::new(source)
            .unwrap()
            .variable("a", 2)
            .variable("b", 0.5)
            .variable("c", vec!["x", "y"])
            .variable("d", serde_json::json!({ "e": u64::MAX }))
            .variable("f", serde_json::Value::Null)
            // Those of the conversation are not replaced.
            .variable("messages", "none")
            .variable("a", 3);
        let said = template.render(&talk(), false).unwrap();
        assert_eq!(said, "4 0.5 y 18446744073709551615 True False");
        let source = "{{ messages | length }}{{ add_generation_prompt }}";
        let own = ChatTemplate::new(source).unwrap().variable("messages", "");
        assert_eq!(own.render(&talk(), true).unwrap(), "4True");
    }

    /// Templates as models on the hub have them.
    #[test]
    fn templates_of_common_models_render_as_in_python() {
        const CHATML: &str = "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + \
                              '<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}{{ \
                              '<|im_start|>assistant\\n' }}{% endif %}";
        const LLAMA: &str = "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = \
                             '<|start|>' + message['role'] + '<|end|>\\n\\n'+ message['content'] | trim + '<|eot|>' %}\
                             {% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}\
                             {% endfor %}{% if add_generation_prompt %}{{ '<|start|>assistant<|end|>\\n\\n' }}{% endif %}";
        const MISTRAL: &str = "{%- if messages[0]['role'] == 'system' %}\n    {%- set system = messages[0]['content'] %}\n    \
                               {%- set rest = messages[1:] %}\n{%- else %}\n    {%- set rest = messages %}\n{%- endif %}\n\
                               {%- if not tools is defined %}\n    {%- set tools = none %}\n{%- endif %}\n\
                               {%- set ns = namespace(index=0) %}\n{%- for message in rest %}\n    \
                               {%- if (message['role'] == 'user') != (ns.index % 2 == 0) %}\n        \
                               {{- raise_exception('roles must alternate') }}\n    {%- endif %}\n    \
                               {%- set ns.index = ns.index + 1 %}\n{%- endfor %}\n{{- bos_token }}\n\
                               {%- for message in rest %}\n    {%- if message['role'] == 'user' %}\n        \
                               {{- '[INST] ' + message['content'].strip() + '[/INST]' }}\n    {%- else %}\n        \
                               {{- ' ' + message['content'] + eos_token}}\n    {%- endif %}\n{%- endfor %}\n";
        let said = |template| {
            let template = ChatTemplate::new(template).unwrap().tokens("<s>", "</s>");
            template.render(&talk()[..3], true).unwrap()
        };
        assert_eq!(
            said(CHATML),
            "<|im_start|>user\n Hi <|im_end|>\n<|im_start|>assistant\nYes<|im_end|>\n<|im_start|>user\nSo<|im_end|>\n\
             <|im_start|>assistant\n"
        );
        assert_eq!(
            said(LLAMA),
            "<s><|start|>user<|end|>\n\nHi<|eot|><|start|>assistant<|end|>\n\nYes<|eot|>\
             <|start|>user<|end|>\n\nSo<|eot|><|start|>assistant<|end|>\n\n"
        );
        assert_eq!(said(MISTRAL), "<s>[INST] Hi[/INST] Yes</s>[INST] So[/INST]");
        let template = ChatTemplate::new(MISTRAL).unwrap().tokens("<s>", "</s>");
        let error = template
            .render(&talk()[1..], false)
            .unwrap_err()
            .to_string();
        assert!(error.contains("roles must alternate"), "{error}");
        // The labels of the last turn, by the text alone.
        let chat = Tokenize::new(OfBytes).chat(ChatTemplate::new(LLAMA).unwrap());
        let labels = chat.tokens(&talk()).unwrap().labels.unwrap();
        let trained = labels.iter().filter(|&&label| label >= 0).count();
        assert_eq!(trained, "Yes<|eot|>No<|eot|>".len());
    }

    #[test]
    fn a_template_that_refuses_is_an_error_of_the_conversation() {
        let error = ChatTemplate::new("{% for %}").unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Config);
        let template = ChatTemplate::new("{{ raise_exception('roles must alternate') }}").unwrap();
        let chat = Tokenize::new(OfBytes).chat(template);
        let error = Graph::from_vec(vec![talk()])
            .pipe(chat)
            .collect()
            .unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Corrupt);
        let said = error.to_string();
        assert!(
            said.starts_with("tokenize_chat: 0:0: corrupt: chat template"),
            "{said}"
        );
        assert!(said.contains("roles must alternate"), "{said}");
        // One that shows the last message only.
        let last = ChatTemplate::new("{{ messages | length }}{{ messages[-1].content }}").unwrap();
        let error = Tokenize::new(OfBytes)
            .chat(last)
            .tokens(&talk())
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("the first 2 messages as the beginning of all 4"),
            "{error}"
        );
    }
}

#[cfg(feature = "tokenizers")]
mod hugging_face {
    use super::*;

    const WORDS: &str = include_str!("../../tests/data/words.json");

    #[test]
    fn a_file_is_read_and_its_special_tokens_are_found() {
        let tokenizer = HfTokenizer::from_bytes(WORDS).unwrap();
        assert_eq!(tokenizer.vocab_size(), 8);
        assert_eq!(tokenizer.decode(&[3, 4]).unwrap(), "hello good");
        assert_eq!(
            tokenizer.decode(&[99]).unwrap_err().kind(),
            ErrorKind::NotFound
        );
        let tokenize = Tokenize::new(tokenizer).end("<eos>").offsets();
        let tokens = tokenize.tokens("hello day<eos>good").unwrap();
        assert_eq!(tokens.ids, [3, 5, 7, 4, 7]);
        assert_eq!(tokens.offsets.unwrap(), [0..5, 6..9, 9..14, 14..18, 18..18]);
        let plain = HfTokenizer::from_bytes(WORDS)
            .unwrap()
            .special_tokens_as_text();
        assert_eq!(
            Tokenize::new(plain).tokens("hello <eos>").unwrap().ids,
            [3, 6, 6, 6]
        );
        let special = HfTokenizer::from_bytes(WORDS).unwrap().add_special_tokens();
        assert_eq!(Tokenize::new(special).tokens("hello").unwrap().ids, [3, 7]);
    }

    #[test]
    fn the_plan_counts_the_words_that_are_remembered() {
        let json = r#"{"version": "1.0", "added_tokens": [],
            "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true},
            "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "Ġ": 2}, "merges": []}}"#;
        let tokenizer = || HfTokenizer::from_bytes(json).unwrap();
        let counted = |tokenizer: HfTokenizer| {
            let kept = tokenizer.kept_bytes();
            let hints = Pipe::<String>::hints(&Tokenize::new(tokenizer));
            assert_eq!(hints.buffered_bytes, kept);
            kept
        };
        assert!(counted(tokenizer()) > 0);
        assert_eq!(counted(tokenizer().add_special_tokens()), 0);
        assert_eq!(counted(HfTokenizer::from_bytes(WORDS).unwrap()), 0);
    }

    #[test]
    fn special_tokens_as_text_are_another_tokenizer_on_resume() {
        let loader = |tokenizer: HfTokenizer| {
            let graph = Graph::from_vec(vec!["hello", "day", "<eos>"]);
            let graph = graph.tokenize(Tokenize::new(tokenizer));
            DataLoader::builder(graph).resumable().build().unwrap()
        };
        let tokenizer = || HfTokenizer::from_bytes(WORDS).unwrap();
        let mut epoch = loader(tokenizer()).epoch(0).blocking();
        epoch.next().unwrap().unwrap();
        let state = epoch.checkpoint().unwrap();
        assert!(loader(tokenizer()).resume(&state).is_ok());
        for other in [
            tokenizer().special_tokens_as_text(),
            tokenizer().add_special_tokens(),
        ] {
            let error = loader(other).resume(&state).expect_err("other tokens");
            assert_eq!(error.kind(), ErrorKind::Config);
        }
    }

    /// Returns a file whose tokens are the words `a` and `b`, with other fields.
    fn of_two_words(fields: serde_json::Value) -> String {
        let mut file = serde_json::json!({
            "version": "1.0", "added_tokens": [], "pre_tokenizer": { "type": "Whitespace" },
            "model": { "type": "WordLevel", "vocab": { "a": 0, "b": 1 }, "unk_token": "a" },
        });
        for (name, value) in fields.as_object().unwrap() {
            file[name] = value.clone();
        }
        file.to_string()
    }

    #[test]
    fn an_added_token_with_another_id_than_in_the_file_is_corrupt() {
        let added = |id: u32, content: &str| {
            of_two_words(serde_json::json!({ "added_tokens": [{
                "id": id, "content": content, "single_word": false, "lstrip": false, "rstrip": false,
                "normalized": false, "special": true,
            }]}))
        };
        for (id, content) in [(2, "<eos>"), (1, "b"), (9, "")] {
            assert!(HfTokenizer::from_bytes(added(id, content)).is_ok());
        }
        for (id, content, given) in [(3, "<eos>", 2), (0, "<eos>", 2), (0, "b", 1)] {
            let error = HfTokenizer::from_bytes(added(id, content)).expect_err("other ids");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            let said =
                format!("no tokenizer: {content:?} has id {id} in the file, and gets {given}");
            assert!(error.to_string().contains(&said), "{error}");
        }
    }

    #[test]
    fn what_the_crate_panics_at_is_corrupt() {
        let none = of_two_words(serde_json::json!({
            "pre_tokenizer": { "type": "FixedLength", "length": 0 },
        }));
        let tokenizer = HfTokenizer::from_bytes(none).unwrap();
        for offsets in [false, true] {
            let error = tokenizer
                .encode("a b", offsets)
                .expect_err("parts of no letters");
            assert_eq!(error.kind(), ErrorKind::Corrupt);
        }
        let strip = of_two_words(serde_json::json!({
            "decoder": { "type": "Strip", "content": "a", "start": 0, "stop": 2 },
        }));
        let tokenizer = HfTokenizer::from_bytes(strip).unwrap();
        let error = tokenizer.decode(&[0]).expect_err("two letters of one");
        assert_eq!(error.kind(), ErrorKind::Corrupt);
    }

    #[test]
    fn a_file_that_is_no_tokenizer_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokenizer.json");
        let said = |path: &std::path::Path| HfTokenizer::from_file(path).unwrap_err();
        assert_eq!(said(&path).kind(), ErrorKind::NotFound);
        // The second one has a merge that is shorter than the prefix, at which the crate panics.
        let short = r###"{"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "continuing_subword_prefix": "##",
            "vocab": {"a": 0, "b": 1}, "merges": ["a b"]}}"###;
        for wrong in ["{}", short] {
            std::fs::write(&path, wrong).unwrap();
            let error = said(&path);
            assert_eq!(error.kind(), ErrorKind::Corrupt);
            let what = "tokenizer.json: corrupt: no tokenizer";
            assert!(error.to_string().contains(what), "{error}");
        }
        std::fs::write(&path, WORDS).unwrap();
        check_pipe(
            &Tokenize::new(HfTokenizer::from_file(&path).unwrap()),
            vec!["hello", "day day", ""],
        );
    }
}
