//! Faults of disks, crashes and other processes. The child processes run this test binary,
//! controlled by variables.

#![cfg(unix)]

use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use tempfile::TempDir;

use super::*;
use crate::stores::{InMemory, StoreExt};
use crate::testing::{Reaction, Scripted, check_store, fixtures};

const LIMIT: u64 = 100_000;

fn objects() -> Scripted {
    Scripted::from_iter((0..50).map(|n| (format!("k{n}"), vec![n as u8; 5000])))
}

fn content(key: &str) -> Vec<u8> {
    vec![key[1..].parse().unwrap(); 5000]
}

fn cache(dir: &TempDir) -> (Scripted, DiskCache<Scripted>) {
    let script = objects();
    (
        script.clone(),
        script
            .cache_on_disk(dir.path().join("cache"), LIMIT)
            .unwrap()
            .without_sync(),
    )
}

/// Reads the object, and returns true if the store was asked.
async fn read(script: &Scripted, cache: &impl Store, key: &str) -> bool {
    let before = script.requests().len();
    assert_eq!(cache.read(key).await.unwrap(), content(key), "{key}");
    script.requests().len() > before
}

/// Returns names and sizes of the files whose names begin with `begin`.
fn files(dir: &TempDir, begin: &str) -> Vec<(String, u64)> {
    let all = fs::read_dir(dir.path().join("cache"))
        .unwrap()
        .map(|file| file.unwrap());
    // Another process may remove a file meanwhile.
    let len = |file: &fs::DirEntry| file.metadata().map_or(0, |meta| meta.len());
    let named = all.map(|file| (file.file_name().into_string().unwrap(), len(&file)));
    named.filter(|(name, _)| name.starts_with(begin)).collect()
}

fn bytes(dir: &TempDir) -> u64 {
    files(dir, "e-")
        .iter()
        .chain(&files(dir, "t-"))
        .map(|(_, len)| len)
        .sum()
}

fn counted(dir: &TempDir) -> u64 {
    u64::from_le_bytes(
        fs::read(dir.path().join("cache/used"))
            .unwrap()
            .try_into()
            .unwrap(),
    )
}

#[tokio::test]
async fn keeps_the_contract_of_a_store() {
    let dir = tempfile::tempdir().unwrap();
    for limit in [4 << 20, 20_000, 0] {
        for _ in 0..2 {
            let store = InMemory::from_iter(fixtures())
                .cache_on_disk(dir.path().join("cache"), limit)
                .unwrap();
            check_store(&store).await;
        }
    }
    let store = InMemory::from_iter(fixtures())
        .cache_on_disk(dir.path().join("cache"), 4 << 20)
        .unwrap();
    check_store(&store.check_versions()).await;
}

#[tokio::test]
async fn the_next_run_finds_what_this_one_has_read() {
    let dir = tempfile::tempdir().unwrap();
    let (script, first) = cache(&dir);
    assert!(read(&script, &first, "k1").await);
    assert!(!read(&script, &first, "k1").await);
    let part = first.get("k2", Get::range(10..20)).await.unwrap();
    assert_eq!(
        (part.range.clone(), part.bytes().await.unwrap().len()),
        (10..20, 10)
    );
    drop(first);
    let (script, second) = cache(&dir);
    assert!(!read(&script, &second, "k1").await);
    let part = second.get("k2", Get::range(10..20)).await.unwrap();
    assert_eq!((part.meta.size, part.range), (Some(5000), 10..20));
    assert_eq!(script.requests(), []);
}

#[tokio::test(start_paused = true)]
async fn many_who_ask_at_once_are_one_request_and_an_error_is_not_kept() {
    let dir = tempfile::tempdir().unwrap();
    let (script, cache) = cache(&dir);
    script.usual(Reaction::default().after(Duration::from_millis(5)));
    let all = futures::future::join_all((0..20).map(|_| cache.read("k1"))).await;
    assert!(all.into_iter().all(|data| data.unwrap() == content("k1")));
    assert_eq!(script.requests().len(), 1);
    script.script(
        "k2",
        [
            Reaction::default().unavailable(),
            Reaction::default().short(5),
        ],
    );
    assert!(cache.read("k2").await.is_err());
    assert!(cache.read("k2").await.is_err());
    assert!(read(&script, &cache, "k2").await);
}

#[tokio::test]
async fn row_85_a_flipped_byte_a_cut_and_another_version_are_requested_anew() {
    let dir = tempfile::tempdir().unwrap();
    let (script, cache) = cache(&dir);
    read(&script, &cache, "k1").await;
    let file = dir.path().join("cache").join(&files(&dir, "e-")[0].0);
    let right = fs::read(&file).unwrap();
    for at in (0..60)
        .chain((60..right.len()).step_by(97))
        .chain([right.len() - 1])
    {
        let mut wrong = right.clone();
        wrong[at] ^= 0x10;
        fs::write(&file, wrong).unwrap();
        assert!(read(&script, &cache, "k1").await, "byte {at}");
        assert!(!read(&script, &cache, "k1").await);
    }
    for wrong in [
        &right[..0],
        &right[..39],
        &right[..right.len() - 1],
        &[&right[..], b"x"].concat(),
    ] {
        fs::write(&file, wrong).unwrap();
        assert!(read(&script, &cache, "k1").await, "{} bytes", wrong.len());
    }
    // An entry under the name of another.
    read(&script, &cache, "k2").await;
    let other = files(&dir, "e-")
        .into_iter()
        .map(|(name, _)| dir.path().join("cache").join(name));
    fs::copy(other.into_iter().find(|path| *path != file).unwrap(), &file).unwrap();
    assert!(read(&script, &cache, "k1").await);

    // An entry under the name of another range of the same length.
    let other_range = tempfile::tempdir().unwrap();
    let (_, ranges) = self::cache(&other_range);
    let first = || ranges.get("k1", Get::range(0..10));
    first().await.unwrap();
    let name = files(&other_range, "e-")[0].0.clone();
    ranges.get("k1", Get::range(10..20)).await.unwrap();
    let second = files(&other_range, "e-");
    let second = second.iter().find(|(file, _)| *file != name).unwrap();
    let place = |name: &str| other_range.path().join("cache").join(name);
    fs::copy(place(&second.0), place(&name)).unwrap();
    assert_eq!(first().await.unwrap().range, 0..10);

    script.put("k1", vec![1; 5000]);
    let new = script.head("k1").await.unwrap().version;
    assert!(
        !read(&script, &cache, "k1").await,
        "without a version, what is kept"
    );
    let object = cache
        .get("k1", Get::default().of_version(new.clone()))
        .await
        .unwrap();
    assert_eq!(object.meta.version, new);
    assert_eq!(files(&dir, "e-").len(), 2, "in place of the old one");
    script.put("k1", vec![1; 5000]);
    let checked = cache.clone().check_versions();
    assert_ne!(
        checked
            .get("k1", Get::default())
            .await
            .unwrap()
            .meta
            .version,
        new
    );
    assert_eq!(counted(&dir), bytes(&dir));
}

#[tokio::test]
async fn row_87_the_folder_stays_below_its_limit_and_the_oldest_goes() {
    let dir = tempfile::tempdir().unwrap();
    let (script, first) = cache(&dir);
    for n in 0..50 {
        read(&script, &first, &format!("k{n}")).await;
        read(&script, &first, "k0").await;
        assert!(bytes(&dir) <= LIMIT && bytes(&dir) == counted(&dir));
    }
    assert!(!read(&script, &first, "k0").await, "used all the time");
    assert!(!read(&script, &first, "k49").await);
    assert!(read(&script, &first, "k1").await);
    let kept = files(&dir, "e-").len();
    assert!(kept >= 18, "{kept}");

    // Returned bytes stay valid, and entries that others removed are not counted twice.
    let held = first.get("k49", Get::default()).await.unwrap();
    for (name, _) in files(&dir, "e-") {
        fs::remove_file(dir.path().join("cache").join(name)).unwrap();
    }
    assert_eq!(held.bytes().await.unwrap(), content("k49"));
    for n in 0..50 {
        read(&script, &first, &format!("k{n}")).await;
        assert!(bytes(&dir) <= LIMIT);
    }
    drop(first);
    let (script, second) = cache(&dir);
    assert_eq!(counted(&dir), bytes(&dir), "who is alone counts anew");
    assert!(!read(&script, &second, "k49").await);
    let full = second.evict(Evict::Never);
    for n in 0..50 {
        full.read(&format!("k{n}")).await.unwrap();
    }
    assert!(
        !read(&script, &full, "k49").await,
        "a cache that evicts nothing keeps what it has"
    );
}

#[tokio::test]
async fn row_87_what_is_larger_than_the_cache_is_passed_by() {
    let dir = tempfile::tempdir().unwrap();
    let script = objects();
    let cache = script
        .clone()
        .cache_on_disk(dir.path().join("cache"), 30_000)
        .unwrap();
    assert!(read(&script, &cache, "k1").await && read(&script, &cache, "k1").await);
    assert_eq!((bytes(&dir), script.requests().len()), (0, 2));
}

#[tokio::test(start_paused = true)]
async fn row_83_any_failing_write_costs_no_item_and_leaves_nothing() {
    let mut failures = 0;
    for n in 1.. {
        let dir = tempfile::tempdir().unwrap();
        let (script, cache) = cache(&dir);
        cache.folder.fail.store(n, Ordering::Relaxed);
        assert!(read(&script, &cache, "k1").await);
        if cache.folder.fail.load(Ordering::Relaxed) > 0
            && cache.folder.fail.load(Ordering::Relaxed) < 1000
        {
            break;
        }
        failures += 1;
        assert!(cache.trouble.said.load(Ordering::Relaxed) && cache.rests());
        assert_eq!(bytes(&dir), 0, "step {n}");
        read(&script, &cache, "k2").await;
        assert_eq!(bytes(&dir), 0, "nothing is written for a while");
        tokio::time::advance(REST).await;
        read(&script, &cache, "k2").await;
        assert!(!read(&script, &cache, "k2").await, "then it is tried again");
        assert_eq!(counted(&dir), bytes(&dir), "step {n}");
    }
    assert_eq!(failures, 5);
}

#[tokio::test(start_paused = true)]
async fn row_83_room_that_was_made_in_vain_is_counted() {
    let dir = tempfile::tempdir().unwrap();
    let (script, cache) = cache(&dir);
    // Fails after its bytes were counted, and the next before it counts.
    for (step, key) in [(2, "k1"), (1, "k2")] {
        cache.folder.fail.store(step, Ordering::Relaxed);
        assert!(read(&script, &cache, key).await);
        tokio::time::advance(REST).await;
    }
    assert_eq!((counted(&dir), bytes(&dir)), (0, 0));
    for n in 0..30 {
        read(&script, &cache, &format!("k{n}")).await;
    }
    let full = bytes(&dir);
    cache.folder.fail.store(1, Ordering::Relaxed);
    assert!(read(&script, &cache, "k40").await);
    assert!(bytes(&dir) < full, "an entry was evicted");
    assert_eq!(counted(&dir), bytes(&dir));
}

#[tokio::test]
async fn a_write_that_was_dropped_leaves_nothing() {
    for polls in 1..12 {
        let dir = tempfile::tempdir().unwrap();
        let (script, cache) = cache(&dir);
        let mut read_one = Box::pin(cache.read("k1"));
        for _ in 0..polls {
            if futures::poll!(&mut read_one).is_ready() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        drop(read_one);
        assert_eq!(files(&dir, "t-"), [], "{polls}");
        read(&script, &cache, "k2").await;
        assert_eq!(counted(&dir), bytes(&dir));
    }
}

#[tokio::test]
async fn row_83_a_folder_that_cannot_be_written_to_is_read_nevertheless() {
    let dir = tempfile::tempdir().unwrap();
    let (script, first) = cache(&dir);
    read(&script, &first, "k1").await;
    drop(first);
    // The test may run as root, for whom modes have no effect: a folder in the place of the file
    // has.
    fs::remove_file(dir.path().join("cache/used")).unwrap();
    fs::create_dir(dir.path().join("cache/used")).unwrap();
    let (script, second) = cache(&dir);
    assert!(!read(&script, &second, "k1").await);
    assert!(read(&script, &second, "k2").await && read(&script, &second, "k2").await);
    assert!(second.trouble.said.load(Ordering::Relaxed));
}

#[test]
fn row_88_a_folder_that_is_not_for_us_alone_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let open = |name: &str| objects().cache_on_disk(dir.path().join(name), LIMIT);
    drop(open("made").unwrap());
    let mode = fs::metadata(dir.path().join("made"))
        .unwrap()
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o700);

    fs::create_dir(dir.path().join("shared")).unwrap();
    symlink(dir.path().join("made"), dir.path().join("link")).unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    for mode in [0o777, 0o1777, 0o770, 0o702] {
        fs::set_permissions(dir.path().join("shared"), fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(
            open("shared").unwrap_err().kind(),
            datapipes::ErrorKind::Denied
        );
    }
    for name in ["link", "file"] {
        let error = open(name).unwrap_err();
        assert_eq!(error.kind(), datapipes::ErrorKind::Denied, "{error}");
        assert!(error.to_string().contains(name), "{error}");
    }
}

#[tokio::test]
async fn row_88_a_link_in_the_place_of_an_entry_is_not_followed() {
    let dir = tempfile::tempdir().unwrap();
    let (script, cache) = cache(&dir);
    read(&script, &cache, "k1").await;
    let entry = dir.path().join("cache").join(&files(&dir, "e-")[0].0);
    let elsewhere = dir.path().join("elsewhere");
    fs::rename(&entry, &elsewhere).unwrap();
    let before = fs::read(&elsewhere).unwrap();
    symlink(&elsewhere, &entry).unwrap();
    assert!(read(&script, &cache, "k1").await);
    assert!(
        fs::symlink_metadata(&entry).unwrap().is_file(),
        "an entry is in its place again"
    );
    assert_eq!(fs::read(elsewhere).unwrap(), before);
}

#[tokio::test]
async fn row_89_no_key_becomes_a_path() {
    let dir = tempfile::tempdir().unwrap();
    let long = "x".repeat(300);
    let keys = [
        "../../out",
        "/etc/passwd",
        "a/../../b",
        "nul\0",
        "new\nline",
        &long,
        ".",
        "used",
    ];
    let script = Scripted::from_iter(keys.map(|key| (key, key.to_owned())));
    let cache = script
        .clone()
        .cache_on_disk(dir.path().join("cache"), LIMIT)
        .unwrap();
    for _ in 0..2 {
        for key in keys {
            assert_eq!(cache.read(key).await.unwrap(), key);
        }
    }
    assert_eq!(script.requests().len(), keys.len());
    assert_eq!(files(&dir, "e-").len(), keys.len());
    assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
}

/// Variable that sets the task of a child process.
const TASK: &str = "DATAPIPES_TEST_DISK_CACHE";

/// Runs this test binary as a child process, in the role of `child`.
fn child(dir: &TempDir, task: &str, wrapper: &str) -> Command {
    let mut command = Command::new("sh");
    let me = std::env::current_exe().unwrap();
    command
        .args(["-c", &format!("{wrapper} exec \"$0\" \"$@\"")])
        .arg(me);
    command.args([
        "--exact",
        "stores::wrappers::disk_cache::tests::child_process",
        "--nocapture",
    ]);
    command
        .env(TASK, format!("{task} {}", dir.path().display()))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    command
}

/// Body of the child processes; no test by itself.
#[tokio::test]
async fn child_process() {
    let Ok(task) = std::env::var(TASK) else {
        return;
    };
    let (task, folder) = task.split_once(' ').unwrap();
    let script = objects();
    let cache = script
        .clone()
        .cache_on_disk(Path::new(folder).join("cache"), LIMIT)
        .unwrap();
    let rounds = match task {
        "forever" => usize::MAX,
        _ => 200,
    };
    let mut at = std::process::id() as usize;
    for _ in 0..rounds {
        at = at.wrapping_mul(31).wrapping_add(7);
        let keys = [at % 50, (at / 50) % 50, (at / 2500) % 50].map(|n| format!("k{n}"));
        for data in futures::future::join_all(keys.iter().map(|key| cache.read(key)))
            .await
            .iter()
            .zip(&keys)
        {
            assert!(*data.0.as_ref().unwrap() == content(data.1));
        }
    }
    if task == "limited" {
        fs::write(Path::new(folder).join("limited"), "").unwrap();
        assert!(
            cache.trouble.said.load(Ordering::Relaxed),
            "writing is limited"
        );
    } else {
        // The file proves that the task was understood and done.
        fs::write(
            Path::new(folder).join(format!("done-{}", std::process::id())),
            "all of it",
        )
        .unwrap();
    }
}

#[tokio::test]
async fn row_84_a_kill_at_any_moment_leaves_whole_entries_and_no_stale_files() {
    let dir = tempfile::tempdir().unwrap();
    drop(cache(&dir));
    let (mut stale, mut kept) = (0, 0);
    for round in 0..50 {
        let mut running = child(&dir, "forever", "").spawn().unwrap();
        tokio::time::sleep(Duration::from_millis(12 + round % 10)).await;
        running.kill().unwrap();
        running.wait().unwrap();
        stale += files(&dir, "t-").len();
        let (script, cache) = cache(&dir);
        assert_eq!(files(&dir, "t-"), []);
        assert_eq!(counted(&dir), bytes(&dir));
        assert!(bytes(&dir) <= LIMIT);
        let before = files(&dir, "e-").len();
        let all: Vec<_> = (0..50)
            .map(|n| cache.id(None, &format!("k{n}"), &Get::default()))
            .collect();
        for id in &all {
            if let Some(entry) = cache.folder.load(id).await {
                assert_eq!(entry.data, content(&entry.meta.key));
                kept += 1;
            }
        }
        assert_eq!(files(&dir, "e-").len(), before, "no entry was wrong");
        read(&script, &cache, &format!("k{round}")).await;
    }
    assert!(kept > 0, "the children were too slow to write anything");
    println!("{stale} stale files, {kept} entries");
}

#[tokio::test]
async fn row_86_two_processes_use_one_folder_and_one_dies() {
    let dir = tempfile::tempdir().unwrap();
    let (script, mine) = cache(&dir);
    let mut dies = child(&dir, "forever", "").spawn().unwrap();
    let mut others: Vec<_> = (0..2)
        .map(|_| child(&dir, "rounds", "").spawn().unwrap())
        .collect();
    let mut most = 0;
    for round in 0..2 {
        for n in 0..150 {
            read(&script, &mine, &format!("k{}", n * 7 % 50)).await;
            // Nothing is added or removed while this file is locked.
            let used = fs::File::open(dir.path().join("cache/used")).unwrap();
            used.lock().unwrap();
            most = most.max(bytes(&dir));
        }
        // The second time the process is dead already.
        assert!(dies.kill().is_ok() || round == 1);
        dies.wait().unwrap();
    }
    for other in &mut others {
        assert!(other.wait().unwrap().success());
        assert!(dir.path().join(format!("done-{}", other.id())).exists());
    }
    assert!(most <= LIMIT, "{most}");
    assert!(!mine.trouble.said.load(Ordering::Relaxed));
}

#[tokio::test]
async fn row_83_a_limit_on_the_size_of_files_costs_no_item() {
    // No block, or four of 512 bytes, and the signal ignored, so that writes fail half-way.
    for blocks in [0, 4] {
        let dir = tempfile::tempdir().unwrap();
        let limit = format!("trap '' XFSZ; ulimit -f {blocks};");
        let status = child(&dir, "limited", &limit).status().unwrap();
        assert!(status.success() && dir.path().join("limited").exists());
        assert_eq!(bytes(&dir), 0);
        // Another process, without a limit, counts from what is there.
        let (script, cache) = cache(&dir);
        read(&script, &cache, "k1").await;
        assert_eq!(counted(&dir), bytes(&dir));
    }
}

#[tokio::test]
async fn stores_of_one_url_that_are_two_places_share_nothing() {
    #[derive(Clone, Debug)]
    struct At(InMemory, &'static str);
    #[async_trait]
    impl Store for At {
        fn url(&self) -> &str {
            self.0.url()
        }
        fn identity(&self) -> String {
            format!("{} at {}", self.url(), self.1)
        }
        async fn get(&self, key: &str, get: Get) -> Result<Object> {
            self.0.get(key, get).await
        }
        fn list(&self, prefix: &str) -> BoxStream<'static, Result<Meta>> {
            self.0.list(prefix)
        }
    }
    let dir = tempfile::tempdir().unwrap();
    for place in ["here", "there", "here"] {
        let store = At(InMemory::from_iter([("k", place)]), place);
        // Through wrappers, too.
        let store = crate::stores::resilient(store).prefix("");
        let cache = store
            .cache_on_disk(dir.path().join("cache"), LIMIT)
            .unwrap();
        assert_eq!(cache.read("k").await.unwrap(), place);
    }
    assert_eq!(files(&dir, "e-").len(), 2);
}
