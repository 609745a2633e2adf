//! Reads all metadata, page by page, in the order of the ring.

use std::sync::Arc;

use datapipes::{Backoff, Error, Result};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use scylla::response::PagingState;
use scylla::statement::prepared::PreparedStatement;
use scylla::statement::unprepared::Statement;
use scylla::value::{CqlValue, Row};

use super::{Cassandra, Connected, fault, layout, prepare};
use crate::Metadata;

/// Number of pages requested ahead of the reader.
const AHEAD: usize = 8;

/// A part of the ring: tokens greater than `after`, up to and including `to`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    after: i64,
    to: i64,
}

/// The whole ring. The smallest number is no token.
const RING: Range = Range {
    after: i64::MIN,
    to: i64::MAX,
};

/// Rows of a page with their tokens, and the position of the next page.
struct Page {
    rows: Vec<(i64, Metadata)>,
    next: Option<PagingState>,
}

struct Scan {
    table: Cassandra,
    connected: Arc<Connected>,
    statement: PreparedStatement,
}

/// Returns the rows by token. The density of the rows is estimated from the first page, since
/// tokens are hashes and therefore evenly distributed. The rest of the ring is cut into ranges of
/// about half a page, of which [`AHEAD`] are requested at once. A range with more than a page is
/// read to its end, so that the order is preserved and only a few pages are in memory.
pub(super) fn rows(table: Cassandra, columns: Vec<String>) -> BoxStream<'static, Result<Metadata>> {
    let begin = async move {
        let scan = Arc::new(Scan::new(table, columns).await?);
        let mut first = scan.page(RING, PagingState::start()).await?;
        let ranges = match first.next.take() {
            None => Ranges {
                after: i64::MAX,
                step: 1,
            },
            Some(_) => {
                // The page may end between two rows of one token: the ranges read both again.
                let last = first.rows.last().map_or(RING.after, |(token, _)| *token);
                while first.rows.last().is_some_and(|(token, _)| *token == last) {
                    first.rows.pop();
                }
                Ranges::behind(last.saturating_sub(1), first.rows.len())
            }
        };
        let again = scan.clone();
        let rest = stream::iter(ranges).map(move |range| {
            let scan = again.clone();
            async move { datapipes::Ok((range, scan.page(range, PagingState::start()).await?)) }
        });
        let rest = rest
            .buffered(AHEAD)
            .map_ok(move |(range, page)| scan.clone().follow(range, page))
            .try_flatten();
        datapipes::Ok(
            stream::iter(first.rows)
                .map(|(_, row)| datapipes::Ok(row))
                .chain(rest),
        )
    };
    crate::until_error(stream::once(begin).try_flatten())
}

impl Scan {
    async fn new(table: Cassandra, columns: Vec<String>) -> Result<Self> {
        let url = &table.0.options.url;
        let names: Vec<_> = columns.iter().map(String::as_str).collect();
        table
            .0
            .layout
            .schema
            .places(&names)
            .map_err(|error| error.within(url))?;
        let select: String = columns
            .iter()
            .map(|column| format!(", \"{column}\""))
            .collect();
        let connected = table.connected().await?;
        let name = layout::metadata(&table.0.options);
        let page = i32::try_from(table.0.options.page).unwrap_or(i32::MAX);
        let statement = Statement::new(format!(
            "SELECT token(key), key, label{select} FROM {name} WHERE token(key) > ? AND token(key) <= ?"
        ));
        let statement = statement.with_page_size(page);
        let statement = prepare(&connected.session, &table.0.options, statement).await?;
        Ok(Scan {
            table,
            connected,
            statement,
        })
    }

    /// Reads a page of a range. A transient error is retried: with the same paging state the same
    /// page is read.
    async fn page(&self, range: Range, from: PagingState) -> Result<Page> {
        Backoff::default()
            .run(|| self.try_page(range, from.clone()))
            .await
    }

    async fn try_page(&self, range: Range, from: PagingState) -> Result<Page> {
        let url = &self.table.0.options.url;
        let odd = |error: &dyn std::fmt::Display| Error::shape(format!("{url}: metadata: {error}"));
        let permit = self.table.permit().await;
        let values = (range.after, range.to);
        let answer = self
            .connected
            .session
            .execute_single_page(&self.statement, values, from)
            .await;
        drop(permit);
        let (answer, next) = answer.map_err(|error| fault::execution(&error).error(url, &error))?;
        let answer = answer.into_rows_result().map_err(|error| odd(&error))?;
        let mut rows = Vec::with_capacity(answer.rows_num());
        for row in answer.rows::<Row>().map_err(|error| odd(&error))? {
            let row = row.map_err(|error| odd(&error))?;
            rows.push(metadata(row).ok_or_else(|| odd(&"a column of another type"))?);
        }
        let next = match next.into_paging_control_flow() {
            std::ops::ControlFlow::Continue(state) => Some(state),
            std::ops::ControlFlow::Break(()) => None,
        };
        Ok(Page { rows, next })
    }

    /// Returns all rows of a range of which one page was read.
    fn follow(self: Arc<Self>, range: Range, first: Page) -> BoxStream<'static, Result<Metadata>> {
        let pages = stream::try_unfold(
            (self, Some(first), None),
            move |(scan, page, next)| async move {
                let page = match (page, next) {
                    (Some(page), _) => page,
                    (None, Some(state)) => scan.page(range, state).await?,
                    (None, None) => return datapipes::Ok(None),
                };
                Ok(Some((page.rows, (scan, None, page.next))))
            },
        );
        pages
            .map_ok(|rows| stream::iter(rows).map(|(_, row)| datapipes::Ok(row)))
            .try_flatten()
            .boxed()
    }
}

fn metadata(row: Row) -> Option<(i64, Metadata)> {
    let mut values = row.columns.into_iter();
    let Some(CqlValue::BigInt(token)) = values.next()? else {
        return None;
    };
    let Some(CqlValue::Uuid(key)) = values.next()? else {
        return None;
    };
    let class = match values.next()? {
        None => None,
        Some(CqlValue::BigInt(class)) => Some(class),
        Some(_) => return None,
    };
    let values = values.map(layout::value).collect::<Option<_>>()?;
    Some((token, Metadata { key, class, values }))
}

/// The ranges of equal length after a token.
struct Ranges {
    after: i64,
    step: u64,
}

impl Ranges {
    /// Returns ranges with about half as many rows each as there were from the beginning of the
    /// ring to `after`.
    fn behind(after: i64, rows: usize) -> Self {
        let seen = after.abs_diff(RING.after);
        let step = if rows == 0 { u64::MAX / 64 } else { seen / 2 };
        // With few rows in a page the estimate is poor; there are never more than a million ranges.
        Ranges {
            after,
            step: step.max(u64::MAX >> 20),
        }
    }
}

impl Iterator for Ranges {
    type Item = Range;

    fn next(&mut self) -> Option<Range> {
        if self.after == RING.to {
            return None;
        }
        let after = self.after;
        self.after = after.saturating_add_unsigned(self.step);
        Some(Range {
            after,
            to: self.after,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_cover_the_rest_of_the_ring_once() {
        for (after, rows) in [
            (i64::MIN + 1000, 10),
            (0, 5000),
            (i64::MAX - 3, 1),
            (i64::MIN, 0),
            (i64::MIN >> 1, 7),
        ] {
            let (mut at, mut count) = (after, 0);
            for range in Ranges::behind(after, rows) {
                assert!(range.after == at && range.to > at, "{range:?}");
                (at, count) = (range.to, count + 1);
            }
            assert!(
                at == i64::MAX && count <= (1 << 20) + 1,
                "{after}: {at}, {count}"
            );
        }
        assert_eq!(
            Ranges {
                after: i64::MAX,
                step: 1
            }
            .next(),
            None
        );
    }
}
