//! Keys by which rows are found again.

use std::collections::HashSet;
use std::hash::Hash;

use datapipes::{Error, Result};
use rusqlite::Connection;
use rusqlite::types::Value;

use super::queries::each;
use crate::sqlite::connections::failed;

/// Keys of all rows, in order.
pub(super) enum Keys {
    Integers(Vec<i64>),
    Others(Vec<Vec<Value>>),
}

impl Keys {
    pub fn read(connection: &Connection, query: &str) -> Result<Keys> {
        let mut integers = Vec::new();
        let mut others: Vec<Vec<Value>> = Vec::new();
        let integer = |key: &[Value]| datapipes::matching!(key, [Value::Integer(key)] => *key);
        each(connection, query, [], |row| {
            let columns = row.as_ref().column_count();
            let key: Vec<Value> = (0..columns)
                .map(|at| row.get(at))
                .collect::<Result<_, _>>()
                .map_err(failed)?;
            if key.contains(&Value::Null) {
                let what = format!("the key of row {} is null", integers.len() + others.len());
                return Err(Error::config(what));
            }
            match integer(&key) {
                Some(key) if others.is_empty() => integers.push(key),
                _ => {
                    others.extend(integers.drain(..).map(|key| vec![Value::Integer(key)]));
                    others.push(key);
                }
            }
            Ok(())
        })?;
        let twice = match others.is_empty() {
            true => first_twice(integers.iter()).map(|key| key.to_string()),
            false => first_twice(others.iter().map(|key| format!("{key:?}"))),
        };
        if let Some(key) = twice {
            return Err(Error::config(format!("the key {key} comes twice")));
        }
        Ok(if others.is_empty() {
            Keys::Integers(integers)
        } else {
            Keys::Others(others)
        })
    }

    pub fn len(&self) -> usize {
        match self {
            Keys::Integers(keys) => keys.len(),
            Keys::Others(keys) => keys.len(),
        }
    }
}

fn first_twice<K: Hash + Eq + Clone>(mut keys: impl Iterator<Item = K>) -> Option<K> {
    let mut seen = HashSet::new();
    keys.find(|key| !seen.insert(key.clone()))
}
