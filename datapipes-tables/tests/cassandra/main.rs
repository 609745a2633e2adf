//! Tables in a real Cassandra, which `DATAPIPES_TEST_CASSANDRA` names; without it each test reports
//! that it was skipped.

mod faults;
mod rows;
mod support;
