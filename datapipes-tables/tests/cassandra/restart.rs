//! The node is killed in the middle of an epoch and restarted by the command in
//! `DATAPIPES_TEST_CASSANDRA_RESTART`. This is a program of its own, since no other test may run at
//! the same time.

mod support;

use std::process::Command;

use datapipes::{DataLoader, Graph};
use datapipes_tables::cassandra::Cassandra;
use datapipes_tables::{RetryTable, Table};
use futures::StreamExt;

use support::{fresh, key, named, number, row, server, soon, url_of};

#[tokio::test(flavor = "multi_thread")]
async fn row_72_a_node_that_is_killed_mid_epoch_and_started_again_loses_nothing() {
    let (Some(server), Some(restart)) = (server(), named("DATAPIPES_TEST_CASSANDRA_RESTART"))
    else {
        return;
    };
    let count = 3000;
    fresh(&server, "killed", "")
        .await
        .put((0..count).map(|n| row(n, 5000)).collect())
        .await
        .unwrap();
    let table = Cassandra::connect(&url_of(&server, "killed", "timeout=2"))
        .await
        .unwrap();
    let table = RetryTable::new(table, soon());
    let graph = Graph::from_vec((0..count).map(key).collect()).map_async(move |key| {
        let table = table.clone();
        async move { table.get(key).await.map(|row| number(&row)) }
    });
    let loader = DataLoader::builder(graph.concurrency(32)).build().unwrap();
    let (mut epoch, mut rows) = (loader.epoch(0), Vec::new());
    while let Some(row) = epoch.next().await {
        rows.push(row.unwrap());
        if rows.len() == 500 {
            let status = Command::new("sh").arg("-c").arg(&restart).status().unwrap();
            assert!(status.success(), "{restart}: {status}");
        }
    }
    assert!(rows.into_iter().eq(0..count));
}
