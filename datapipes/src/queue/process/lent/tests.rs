use rustix::process::getpid;

use super::*;

/// Bytes of a row: three and a half pages more than what is worth mapping, so that it begins and
/// ends inside of pages.
const ROW: usize = WORTH_MAPPING + 14_000;

/// Makes memory of three rows and a bit, and lends it to this process.
fn lent() -> (Arc<SharedMemory>, Arc<Lent>) {
    let shared = SharedMemory::new(3 * ROW + 1).unwrap();
    let fd = shared.memory.share().unwrap();
    let memory = Memfd::received(fd, shared.memory.len() as u64).unwrap();
    (shared, Arc::new(Lent::new(memory)))
}

/// Reads what the owner of the memory has.
fn owned(shared: &SharedMemory) -> &[u8] {
    // SAFETY: mapped as long as it lives. The rows are written to between the calls.
    unsafe { std::slice::from_raw_parts(shared.start().as_ptr(), shared.len()) }
}

fn fill(row: &dyn Window, value: u8) {
    // SAFETY: a row that is open, or private.
    unsafe { row.start().write_bytes(value, row.len()) };
}

fn bytes(row: &dyn Window) -> &[u8] {
    // SAFETY: mapped as long as it lives.
    unsafe { std::slice::from_raw_parts(row.start().as_ptr(), row.len()) }
}

/// Returns the rights of the mapping that an address is in.
fn rights(address: NonNull<u8>) -> String {
    let maps = std::fs::read_to_string(format!("/proc/{}/maps", getpid().as_raw_pid())).unwrap();
    let line = maps.lines().find(|line| {
        let (from, to) = line.split(' ').next().unwrap().split_once('-').unwrap();
        let [from, to] = [from, to].map(|hex| usize::from_str_radix(hex, 16).unwrap());
        (from..to).contains(&address.addr().get())
    });
    line.unwrap().split(' ').nth(1).unwrap().to_owned()
}

/// Returns an address in the middle of a row.
fn middle(row: &dyn Window) -> NonNull<u8> {
    // SAFETY: inside of the row.
    unsafe { row.start().add(row.len() / 2) }
}

#[test]
fn a_row_is_filled_in_place_and_its_neighbours_stay() {
    let (shared, lent) = lent();
    let rows = [0, 1, 2].map(|row| lent.clone().open(row * ROW, ROW).unwrap());
    for (value, row) in rows.iter().enumerate() {
        fill(&**row, value as u8 + 1);
        assert_eq!(rights(middle(&**row)), "rw-s");
        // The pages that it shares with its neighbours are its own until it is sealed.
        let [head, tail] = [0, ROW - 1].map(|at| {
            // SAFETY: inside of the row.
            rights(unsafe { row.start().add(at) })
        });
        assert_eq!(head == "rw-p", value > 0);
        assert_eq!(tail, "rw-p");
    }
    for place in [1, 2, 0] {
        assert!(rows[place].seal());
        assert_eq!(rights(middle(&*rows[place])), "r--s");
        assert!(!rows[place].seal(), "once");
    }
    let expected = |(at, value): (usize, &u8)| *value == (at / ROW) as u8 + 1;
    assert!(owned(&shared)[..3 * ROW].iter().enumerate().all(expected));
    assert_eq!(owned(&shared)[3 * ROW], 0);
}

#[test]
fn a_row_that_is_granted_again_is_where_it_was() {
    let (shared, lent) = lent();
    let row = lent.clone().open(ROW, ROW).unwrap();
    let first = row.start();
    fill(&*row, 1);
    drop(row);
    assert_eq!(
        rights(first.map_addr(|first| first.saturating_add(ROW / 2))),
        "r--s",
        "also if it was given up"
    );
    let row = lent.clone().open(ROW, ROW).unwrap();
    assert_eq!(row.start(), first);
    assert_eq!(rights(middle(&*row)), "rw-s");
    fill(&*row, 2);
    assert!(row.seal());
    assert!(owned(&shared)[ROW..2 * ROW].iter().all(|value| *value == 2));
    // Two at once are two mappings.
    let other = lent.clone().open(ROW, ROW).unwrap();
    assert_ne!(other.start(), first);
    assert!(lent.open(0, WORTH_MAPPING - 1).is_none());
}

#[test]
fn a_row_that_is_detached_is_private_and_keeps_its_bytes() {
    let (shared, lent) = lent();
    for is_sealed in [true, false] {
        let row = lent.clone().open(ROW, ROW).unwrap();
        fill(&*row, 7);
        assert!(!is_sealed || row.seal());
        row.detach();
        // The owner grants it to another.
        let again = lent.clone().open(ROW, ROW).unwrap();
        fill(&*again, 8);
        assert!(again.seal());
        assert!(bytes(&*row).iter().all(|value| *value == 7));
        assert_eq!(rights(middle(&*row)), "rw-p");
        fill(&*row, 9);
        assert!(!row.seal());
        assert!(owned(&shared)[ROW..2 * ROW].iter().all(|value| *value == 8));
    }
}
