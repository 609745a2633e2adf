//! Memory of large messages, which is used again: memory from the system costs a page fault every 4 KiB.

use std::sync::Mutex;

use crate::sync::lock;

/// Greatest number of bytes that are kept, in all of the process, while it has connections.
const MOST: usize = 128 << 20;

/// Memory that nobody uses, and the number of connections.
static KEPT: Mutex<Kept> = Mutex::new(Kept {
    memory: Vec::new(),
    connections: 0,
});

struct Kept {
    memory: Vec<Vec<u8>>,
    connections: usize,
}

/// Counts a connection.
pub(super) fn enter() {
    lock(&KEPT).connections += 1;
}

/// Counts a connection less. With the last, nothing is kept.
pub(super) fn leave() {
    let mut kept = lock(&KEPT);
    kept.connections -= 1;
    if kept.connections == 0 {
        kept.memory = Vec::new();
    }
}

/// Returns kept memory with room for this length, if there is some. It has any contents.
pub(super) fn take(len: usize) -> Option<Vec<u8>> {
    let kept = &mut lock(&KEPT).memory;
    // Memory of a larger slice is not counted with this one, so it has to be of about the same length.
    let fits = |memory: &Vec<u8>| memory.capacity() >= len && memory.capacity() - len <= len / 8;
    let place = kept.iter().position(fits)?;
    Some(kept.swap_remove(place))
}

/// Keeps memory for later, instead of the oldest.
pub(super) fn keep(memory: Vec<u8>) {
    let mut kept = lock(&KEPT);
    if kept.connections == 0 {
        return;
    }
    let kept = &mut kept.memory;
    kept.push(memory);
    let mut bytes: usize = kept.iter().map(Vec::capacity).sum();
    while bytes > MOST {
        bytes -= kept.remove(0).capacity();
    }
}
