//! Documents in JSON lines and in rows of tables.

use std::sync::Arc;

use bytes::Bytes;
use datapipes::{Arity, Context, Error, Hints, Items, Pipe, Result};
use datapipes_io::formats::Row;
use serde_json::Value;

/// Returns a field of each row, or of each line, which is a JSON object; blank lines are no
/// documents.
#[derive(Clone, Debug)]
pub struct TextField(Arc<str>);

impl TextField {
    pub fn new(name: String) -> Self {
        TextField(name.into())
    }

    fn of(&self, line: &[u8]) -> Result<String, String> {
        let value = serde_json::from_slice(line).map_err(|error| {
            let text = error.to_string();
            let what = text
                .rsplit_once(" at line ")
                .map_or(&*text, |(what, _)| what);
            format!("column {}: {what}", error.column())
        })?;
        match value {
            Value::Object(fields) => self.of_fields(fields),
            value => Err(format!("{}, not an object", kind(&value))),
        }
    }

    fn of_fields(&self, mut fields: Row) -> Result<String, String> {
        let name = &*self.0;
        match fields.remove(name) {
            Some(Value::String(text)) => Ok(text),
            Some(value) => Err(format!("field {name:?} is {}, not a string", kind(&value))),
            None => {
                let names: Vec<_> = fields
                    .keys()
                    .take(8)
                    .map(|name| format!("{name:?}"))
                    .collect();
                let names = names.join(", ");
                Err(format!(
                    "no field {name:?}, which --field names; there are: {names}"
                ))
            }
        }
    }
}

fn kind(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a string",
        Value::Array(_) => "an array",
        Value::Object(_) => "an object",
    }
}

impl Pipe<Bytes> for TextField {
    type Out = String;

    fn apply(&self, lines: Items<Bytes>, cx: &Context) -> Items<String> {
        let this = self.clone();
        lines.each(cx, move |line| {
            if line.trim_ascii().is_empty() {
                return None;
            }
            let number = line.origin().index() + 1;
            Some(line.try_map(|line| {
                this.of(&line)
                    .map_err(|problem| Error::corrupt(format!("line {number}, {problem}")))
            }))
        })
    }
    fn name(&self) -> String {
        "field".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::AtMostOne).settings(&self.0)
    }
}

impl Pipe<Row> for TextField {
    type Out = String;

    fn apply(&self, rows: Items<Row>, cx: &Context) -> Items<String> {
        let this = self.clone();
        rows.each(cx, move |row| {
            let number = row.origin().index() + 1;
            Some(row.try_map(|row| {
                this.of_fields(row)
                    .map_err(|problem| Error::corrupt(format!("row {number}, {problem}")))
            }))
        })
    }
    fn name(&self) -> String {
        "field".to_owned()
    }
    fn hints(&self) -> Hints {
        Hints::shardable().arity(Arity::One).settings(&self.0)
    }
}
