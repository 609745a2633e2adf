//! The planner, without running anything.
