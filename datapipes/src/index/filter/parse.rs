//! Parser of filters: `age > 30 and (sex = "f" or site in ("a", "b")) and not weight is null`.

use std::borrow::Cow;
use std::str::FromStr;

use super::{Compare, DEEPEST, Filter, Value};
use crate::{Error, Result};

/// Parses a filter; see [`Filter`] for the text.
///
/// # Errors
/// `Config`, with the position.
impl FromStr for Filter {
    type Err = Error;

    fn from_str(text: &str) -> Result<Filter> {
        let mut parser = Parser {
            tokens: tokens(text)?,
            at: 0,
            end: text.chars().count(),
            depth: 0,
        };
        let filter = parser.or()?;
        match parser.tokens.get(parser.at) {
            None => Ok(filter),
            Some(_) => Err(parser.expected("and, or, or the end")),
        }
    }
}

#[derive(Clone, Debug, PartialEq)]
enum Token {
    Word(String),
    /// The name of a column in backticks.
    Name(String),
    Text(String),
    Number(Value),
    Sign(&'static str),
}

/// A longer sign comes before the signs that are its beginning.
const SIGNS: [&str; 11] = ["==", "!=", "<>", "<=", ">=", "=", "<", ">", "(", ")", ","];

fn wrong(at: usize, what: &str) -> Error {
    Error::config(format!("the filter at character {}: {what}", at + 1))
}

/// Returns the tokens with their positions.
fn tokens(text: &str) -> Result<Vec<(Token, usize)>> {
    let mut tokens = Vec::new();
    // The number of characters before the rest.
    let mut at = 0;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let (token, len) = if c.is_whitespace() {
            (at, rest) = (at + 1, &rest[c.len_utf8()..]);
            continue;
        } else if let Some(sign) = SIGNS.iter().find(|sign| rest.starts_with(**sign)) {
            (Token::Sign(sign), sign.len())
        } else if c == '"' || c == '\'' {
            let (text, len) = quoted(rest, c).ok_or_else(|| wrong(at, "the text has no end"))?;
            (Token::Text(text), len)
        } else if c == '`' {
            let (name, len) = quoted(rest, c).ok_or_else(|| wrong(at, "the name has no end"))?;
            (Token::Name(name), len)
        } else if c.is_ascii_digit() || matches!(c, '-' | '+' | '.') {
            // A sign belongs to the number at its beginning or in its exponent.
            let mut last = ' ';
            let part_of = |c: char| {
                let part = c.is_ascii_alphanumeric()
                    || c == '.'
                    || (matches!(c, '-' | '+') && matches!(last, ' ' | 'e' | 'E'));
                last = c;
                part
            };
            let number = rest
                .split_once(not(part_of))
                .map_or(rest, |(number, _)| number);
            let value = match (number.parse::<i64>(), number.parse::<u64>(), number.parse()) {
                (Ok(int), ..) => Value::Int(int),
                (_, Ok(large), _) => Value::UInt(large),
                (.., Ok(float)) => Value::Float(float),
                _ => return Err(wrong(at, &format!("{number} is no number"))),
            };
            (Token::Number(value), number.len())
        } else {
            let word = rest
                .split_once(|c: char| !(c.is_alphanumeric() || matches!(c, '_' | '.')))
                .map_or(rest, |(word, _)| word);
            if !is_word(word) {
                return Err(wrong(
                    at,
                    &format!(
                        "{:?} is not expected",
                        if word.is_empty() {
                            &rest[..c.len_utf8()]
                        } else {
                            word
                        }
                    ),
                ));
            }
            (Token::Word(word.to_owned()), word.len())
        };
        tokens.push((token, at));
        at += rest[..len].chars().count();
        rest = &rest[len..];
    }
    Ok(tokens)
}

/// Returns true for words of letters, digits and `_`, with dots between them.
fn is_word(name: &str) -> bool {
    name.split('.').all(|part| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
            && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    })
}

/// Words that are names of columns only in backticks.
const KEYWORDS: [&str; 9] = [
    "and", "or", "not", "in", "is", "null", "true", "false", "inf",
];

/// Returns the name of a column as in the text of a filter.
pub(super) fn quoted_name(name: &str) -> Cow<'_, str> {
    if is_word(name) && !KEYWORDS.iter().any(|word| word.eq_ignore_ascii_case(name)) {
        name.into()
    } else {
        format!("`{}`", name.replace('`', "``")).into()
    }
}

fn not(mut f: impl FnMut(char) -> bool) -> impl FnMut(char) -> bool {
    move |c| !f(c)
}

/// Parses text in quotes, and returns its length including the quotes.
fn quoted(rest: &str, quote: char) -> Option<(String, usize)> {
    let mut text = String::new();
    let mut at = 1;
    loop {
        let end = at + rest[at..].find(quote)?;
        text += &rest[at..end];
        at = end + 1;
        if !rest[at..].starts_with(quote) {
            return Some((text, at));
        }
        text.push(quote);
        at += 1;
    }
}

struct Parser {
    tokens: Vec<(Token, usize)>,
    at: usize,
    end: usize,
    depth: usize,
}

impl Parser {
    fn expected(&self, what: &str) -> Error {
        let at = self.tokens.get(self.at).map_or(self.end, |(_, at)| *at);
        wrong(at, &format!("expected {what}"))
    }

    fn peek(&self) -> Option<&Token> {
        self.tokens.get(self.at).map(|(token, _)| token)
    }

    fn word(&mut self, wanted: &str) -> bool {
        let found =
            matches!(self.peek(), Some(Token::Word(word)) if word.eq_ignore_ascii_case(wanted));
        self.at += usize::from(found);
        found
    }

    fn sign(&mut self, wanted: &str) -> bool {
        let found = matches!(self.peek(), Some(Token::Sign(sign)) if *sign == wanted);
        self.at += usize::from(found);
        found
    }

    fn or(&mut self) -> Result<Filter> {
        self.joined("or", Parser::and, Filter::Or)
    }

    fn and(&mut self) -> Result<Filter> {
        self.joined("and", Parser::term, Filter::And)
    }

    /// Parses one term, or several with a word between them.
    fn joined(
        &mut self,
        word: &str,
        term: fn(&mut Self) -> Result<Filter>,
        join: fn(Vec<Filter>) -> Filter,
    ) -> Result<Filter> {
        let first = term(self)?;
        if !self.word(word) {
            return Ok(first);
        }
        let mut terms = vec![first, term(self)?];
        while self.word(word) {
            terms.push(term(self)?);
        }
        Ok(join(terms))
    }

    fn term(&mut self) -> Result<Filter> {
        self.depth += 1;
        if self.depth > DEEPEST {
            return Err(self.expected(&format!("no more than {DEEPEST} levels")));
        }
        let term = if self.word("not") {
            self.term()?.not()
        } else if self.sign("(") {
            let inner = self.or()?;
            self.close()?;
            inner
        } else {
            self.comparison()?
        };
        self.depth -= 1;
        Ok(term)
    }

    fn close(&mut self) -> Result<()> {
        if self.sign(")") {
            Ok(())
        } else {
            Err(self.expected(")"))
        }
    }

    fn comparison(&mut self) -> Result<Filter> {
        let (column, is_word) = match self.peek().cloned() {
            Some(Token::Word(word)) => (word, true),
            Some(Token::Name(name)) => (name, false),
            _ => return Err(self.expected("a column")),
        };
        self.at += 1;
        let negated = self.word("not");
        if self.word("in") {
            let within = Filter::In(column, self.values()?);
            return Ok(if negated { within.not() } else { within });
        }
        if negated {
            return Err(self.expected("in"));
        }
        if self.word("is") {
            let negated = self.word("not");
            if !self.word("null") {
                return Err(self.expected("null"));
            }
            let null = Filter::IsNull(column);
            return Ok(if negated { null.not() } else { null });
        }
        let how = match self.peek() {
            Some(Token::Sign("=" | "==")) => Compare::Eq,
            Some(Token::Sign("!=" | "<>")) => Compare::Ne,
            Some(Token::Sign("<")) => Compare::Lt,
            Some(Token::Sign("<=")) => Compare::Le,
            Some(Token::Sign(">")) => Compare::Gt,
            Some(Token::Sign(">=")) => Compare::Ge,
            _ if is_word && column.eq_ignore_ascii_case("true") => {
                return Ok(Filter::And(Vec::new()));
            }
            _ if is_word && column.eq_ignore_ascii_case("false") => {
                return Ok(Filter::Or(Vec::new()));
            }
            _ => return Err(self.expected("=, !=, <, <=, >, >=, in or is")),
        };
        self.at += 1;
        Ok(Filter::Compare(column, how, self.value()?))
    }

    fn values(&mut self) -> Result<Vec<Value>> {
        if !self.sign("(") {
            return Err(self.expected("("));
        }
        let mut values = Vec::new();
        if self.sign(")") {
            return Ok(values);
        }
        values.push(self.value()?);
        while self.sign(",") {
            values.push(self.value()?);
        }
        self.close()?;
        Ok(values)
    }

    fn value(&mut self) -> Result<Value> {
        let value = match self.peek() {
            Some(Token::Text(text)) => Value::Text(text.clone()),
            Some(Token::Number(number)) => number.clone(),
            Some(Token::Word(word)) => match &*word.to_ascii_lowercase() {
                "true" => Value::Bool(true),
                "false" => Value::Bool(false),
                "null" => Value::Null,
                "inf" => Value::Float(f64::INFINITY),
                _ => {
                    return Err(self.expected(&format!(
                        "a value ({word:?} is a column, or text without quotes)"
                    )));
                }
            },
            _ => return Err(self.expected("a value")),
        };
        self.at += 1;
        Ok(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;
    use crate::index::filter::col;

    fn parse(text: &str) -> Result<Filter> {
        text.parse()
    }

    #[test]
    fn and_binds_closer_than_or_and_not_closest() {
        let (a, b, c) = (col("a").eq(1), col("b").lt(-2.5), col("c").eq("x"));
        assert_eq!(
            parse("a = 1 or b < -2.5 and c == 'x'").unwrap(),
            a.clone().or(b.clone().and(c.clone()))
        );
        assert_eq!(
            parse("(a=1 OR b<-2.5)and c=\"x\"").unwrap(),
            a.clone().or(b.clone()).and(c)
        );
        assert_eq!(parse("not a = 1 and b < -2.5").unwrap(), a.not().and(b));
    }

    #[test]
    fn every_comparison_and_value() {
        let all = [
            ("a <> 1e3", col("a").ne(1000.0)),
            ("a != 'it''s \"so\"'", col("a").ne("it's \"so\"")),
            ("a <= -9223372036854775808", col("a").le(i64::MIN)),
            ("a >= +7", col("a").ge(7)),
            ("a > true", col("a").gt(true)),
            (
                "a in (1, 2.5, null)",
                Filter::In("a".into(), vec![1.into(), 2.5.into(), Value::Null]),
            ),
            ("a not in ()", col("a").is_in([0i64; 0]).not()),
            ("a is null", col("a").is_null()),
            ("a Is Not Null", col("a").is_null().not()),
            ("a < -inf", col("a").lt(f64::NEG_INFINITY)),
            ("a = 'ü\n'", col("a").eq("ü\n")),
            ("true", Filter::all()),
            ("a = 18446744073709551615", col("a").eq(u64::MAX)),
            ("a.b_1 = 1", col("a.b_1").eq(1)),
            ("`größe``` > 1", col("größe`").gt(1)),
            ("`in` in ('x')", col("in").is_in(["x"])),
            ("`true` is null", col("true").is_null()),
        ];
        for (text, filter) in all {
            assert_eq!(parse(text).unwrap(), filter, "{text}");
            assert_eq!(parse(&filter.to_string()).unwrap(), filter, "{filter}");
        }
    }

    #[test]
    fn a_mistake_is_named_with_its_place() {
        for (text, says) in [
            ("", "at character 1: expected a column"),
            ("age >", "at character 6: expected a value"),
            (
                "age > thirty",
                "at character 7: expected a value (\"thirty\" is a column, or text without quotes)",
            ),
            ("age 30", "at character 5: expected =, !="),
            ("age > 3x", "at character 7: 3x is no number"),
            ("a = 'x", "at character 5: the text has no end"),
            ("a = 1 b = 2", "at character 7: expected and, or"),
            ("(a = 1", "at character 7: expected )"),
            ("a not 1", "at character 7: expected in"),
            ("a is 1", "at character 6: expected null"),
            ("a in 1", "at character 6: expected ("),
            ("a; drop table x", "at character 2: \";\" is not expected"),
            ("ü = 1", "at character 1: \"ü\" is not expected"),
            ("a = 'ü' b", "at character 9: expected and, or"),
            ("a. = 1", "at character 1: \"a.\" is not expected"),
            ("`a = 1", "at character 1: the name has no end"),
        ] {
            let error = parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Config);
            assert!(error.to_string().contains(says), "{text:?}: {error}");
        }
        let deep = format!("{}a = 1{}", "(".repeat(100_000), ")".repeat(100_000));
        assert!(parse(&deep).unwrap_err().to_string().contains("levels"));
        assert!(parse(&format!("{}a = 1", "not ".repeat(100_000))).is_err());
    }
}
