//! The first messages of a connection between machines.
//!
//! 1. The worker says what it is: version, executable, machine, process, and a random number.
//! 2. The trainer refuses, with the reason, or sends a random number of its own and its proof.
//! 3. The worker checks the proof, and sends its own.
//! 4. The trainer refuses, or lets it in.
//!
//! A proof is a hash of the secret, the two random numbers, the executable, the side, and over TLS a
//! value that only the two ends of this connection have, so that none can be used again, sent back,
//! or passed on by a machine in between. A worker runs functions that the trainer names by their
//! place in the executable: it therefore does nothing before it knows that the other side has the
//! secret, and the same executable.

use std::future::poll_fn;
use std::io;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use blake3::Hash;

use super::Crash;
use crate::codec::damaged;
use crate::error::escape;
use crate::queue::{Limits, ReadHalf, RemotePut, RemoteTake, Weight, WriteHalf};
use crate::run::child::protocol::whole;
use crate::{Error, ErrorKind, Reader, Result, Wire, Writer};

/// Version of the messages between trainer and worker.
const PROTOCOL: u32 = 4;
/// First word of a worker.
const MAGIC: &str = "datapipes worker";
/// Greatest length of a message before the other side is known, in bytes.
const MOST_UNKNOWN: u64 = 4096;
/// Greatest length of a message afterwards.
const MOST_KNOWN: u64 = 1 << 40;
/// Limits of what waits before the child's own are set.
const LIMITS: Limits = Limits {
    items: 4096,
    bytes: 16 << 20,
};

/// A worker, by its own words.
#[derive(Debug, PartialEq)]
pub(super) struct Greeting {
    pub machine: String,
    pub process: u32,
    /// Number of this process among all of all machines.
    pub id: u64,
    /// Crash of the process whose place it took.
    pub before: Option<Crash>,
    nonce: [u8; 32],
}

/// The two ends of a connection.
pub(super) struct Ends {
    pub put: RemotePut,
    pub take: RemoteTake,
    /// Value that only the two ends of the connection have; zeros if it is not encrypted.
    binding: Binding,
}

/// Value that binds a proof to a connection.
pub(super) type Binding = [u8; 32];

impl Ends {
    /// Makes the ends of a connection.
    pub(super) fn new(read: ReadHalf, write: WriteHalf, binding: Binding) -> Ends {
        Ends {
            put: RemotePut::new(write, LIMITS),
            take: RemoteTake::new(read, MOST_UNKNOWN),
            binding,
        }
    }

    async fn send(&mut self, message: &impl Wire) -> Result<()> {
        let mut writer = Writer::new();
        message.encode(&mut writer)?;
        self.put.send(writer, Weight { items: 1, bytes: 0 })?;
        poll_fn(|cx| self.put.poll_flush(cx)).await
    }

    async fn receive<T>(&mut self, read: impl FnOnce(&mut Reader<'_>) -> Result<T>) -> Result<T> {
        let Some(parcel) = poll_fn(|cx| self.take.poll_parcel(cx)).await else {
            return Err(match self.take.fault() {
                Some(fault) => fault.copied(),
                None => Error::new(ErrorKind::Io, "it closed the connection"),
            });
        };
        whole(&parcel, read)
    }
}

/// Receives a worker's greeting; an error in it is a reason to refuse the worker.
async fn greeting(ends: &mut Ends) -> Result<Result<Greeting, String>> {
    ends.receive(|from| {
            if String::decode(from)? != MAGIC {
                return Err(damaged("no greeting of a worker"));
            }
            let version = u32::decode(from)?;
            if version != PROTOCOL {
                // The rest may be anything.
                from.raw(from.left())?;
                return Ok(Err(format!(
                    "it speaks version {version} of the protocol, and this program version {PROTOCOL}"
                )));
            }
            let (ours, theirs) = (executable_hash()?, Hash::from_bytes(Wire::decode(from)?));
            let greeting = Greeting {
                machine: Wire::decode(from)?,
                process: Wire::decode(from)?,
                nonce: Wire::decode(from)?,
                id: Wire::decode(from)?,
                before: Wire::decode(from)?,
            };
            Ok(if theirs == ours {
                Ok(greeting)
            } else {
                Err(format!(
                    "it runs another executable ({}) than the trainer ({}): both have to be copies of one file",
                    short(theirs),
                    short(ours)
                ))
            })
        })
        .await
}

/// Receives a worker's greeting, and lets it in or tells it why not. Returns the time of a round trip,
/// too.
///
/// # Errors
/// The reason for which it was not let in.
pub(super) async fn let_in(ends: &mut Ends, token: &str) -> Result<(Greeting, Duration)> {
    let greeting = greeting(ends).await?;
    let greeting = match greeting {
        Ok(greeting) => greeting,
        Err(why) => return refuse(ends, why).await,
    };
    let nonce = nonce()?;
    let (ours, binding) = (executable_hash()?, ends.binding);
    let proof = |side| prove(side, token, &greeting.nonce, &nonce, ours, &binding);
    ends.send(&(true, nonce, *proof("trainer").as_bytes()))
        .await?;
    // The worker has its executable's hash already, so its answer takes no time but that of the way.
    let sent = Instant::now();
    let theirs = Hash::from_bytes(ends.receive(Wire::decode).await?);
    let round_trip = sent.elapsed();
    // Comparing two hashes takes the same time wherever they differ.
    if theirs != proof("worker") {
        return refuse(ends, "it has another token".to_owned()).await;
    }
    ends.send(&true).await?;
    ends.take.set_most(MOST_KNOWN);
    Ok((greeting, round_trip))
}

/// Receives a worker's greeting, and refuses it for a reason that has nothing to do with it.
///
/// # Errors
/// The reason, or why there was no greeting.
pub(super) async fn turn_away<T>(ends: &mut Ends, why: &str) -> Result<T> {
    let _ = greeting(ends).await?;
    refuse(ends, why.to_owned()).await
}

/// Tells a worker why it is not let in.
///
/// # Errors
/// Always: the reason.
pub(super) async fn refuse<T>(ends: &mut Ends, why: String) -> Result<T> {
    ends.send(&(false, why.clone())).await?;
    Err(Error::denied(why))
}

/// Greets a trainer, as a worker.
///
/// # Errors
/// [`ErrorKind::Denied`] with the trainer's reason; any other if the connection is lost, or the
/// other side is no trainer with the same secret.
pub(super) async fn enter(
    ends: &mut Ends,
    token: &str,
    id: u64,
    before: Option<&Crash>,
) -> Result<()> {
    let ours = executable_hash()?;
    let our_nonce = nonce()?;
    let about = (machine(), std::process::id(), our_nonce, id);
    let about = (*ours.as_bytes(), about, before.cloned());
    ends.send(&(MAGIC.to_owned(), PROTOCOL, about)).await?;
    let (nonce, proof): ([u8; 32], [u8; 32]) = ends
        .receive(|from| {
            verdict(from)?;
            Ok((Wire::decode(from)?, Wire::decode(from)?))
        })
        .await?;
    let binding = ends.binding;
    let expected = |side| prove(side, token, &our_nonce, &nonce, ours, &binding);
    let is_known = Hash::from_bytes(proof) == expected("trainer");
    // Sent in either case, so that the trainer's log has the reason, too.
    ends.send(expected("worker").as_bytes()).await?;
    let verdict = ends.receive(verdict).await;
    if !is_known {
        return Err(Error::denied("the trainer has another token"));
    }
    verdict?;
    ends.take.set_most(MOST_KNOWN);
    Ok(())
}

/// Takes any bytes as those of a worker, and of a trainer, that connects, and then as the messages of one
/// that was let in.
#[cfg(feature = "testing")]
pub(crate) fn hear(bytes: &[u8]) {
    // Both sides compare it. The program of a fuzz target does not call `worker::init`.
    super::super::executable::hold_executable();
    let ends = || {
        let read = std::io::Cursor::new(bytes.to_vec());
        Ends::new(Box::pin(read), Box::pin(tokio::io::sink()), [0; 32])
    };
    crate::run::block_on(async {
        let _ = let_in(&mut ends(), "token").await;
        let _ = enter(&mut ends(), "token", 0, None).await;
        let mut take = ends().take;
        take.set_most(MOST_KNOWN);
        while let Some(parcel) = poll_fn(|cx| take.poll_parcel(cx)).await {
            super::super::protocol::hear(&parcel);
        }
    });
}

/// Reads if the trainer goes on.
fn verdict(from: &mut Reader<'_>) -> Result<()> {
    if bool::decode(from)? {
        return Ok(());
    }
    let why = String::decode(from)?;
    Err(Error::denied(format!(
        "the trainer refuses this worker: {}",
        escape(&why)
    )))
}

fn prove(
    side: &str,
    token: &str,
    worker: &[u8; 32],
    trainer: &[u8; 32],
    executable: Hash,
    binding: &Binding,
) -> Hash {
    let key = blake3::derive_key(
        "datapipes 2026-11 token of remote workers",
        token.as_bytes(),
    );
    let mut hasher = blake3::Hasher::new_keyed(&key);
    hasher.update(worker);
    hasher.update(trainer);
    hasher.update(executable.as_bytes());
    hasher.update(binding);
    hasher.update(side.as_bytes());
    hasher.finalize()
}

/// Hash of this process's executable, once it is known.
static EXECUTABLE: OnceLock<Hash> = OnceLock::new();

/// Sets the hash of this process's executable, which its agent has made.
pub(super) fn know_executable(hash: Hash) {
    let _ = EXECUTABLE.set(hash);
}

/// Returns the hash of this process's executable.
///
/// # Errors
/// It cannot be read.
pub(super) fn executable_hash() -> Result<Hash> {
    if let Some(hash) = EXECUTABLE.get() {
        return Ok(*hash);
    }
    let hash = || -> io::Result<Hash> {
        let file = super::super::executable::open()?;
        Ok(blake3::Hasher::new().update_reader(file)?.finalize())
    };
    let hash = hash().map_err(|error| Error::io(error).within("cannot read this executable"))?;
    Ok(*EXECUTABLE.get_or_init(|| hash))
}

fn short(hash: Hash) -> String {
    hash.to_hex()[..12].to_owned()
}

/// Returns random bytes.
pub(super) fn nonce() -> Result<[u8; 32]> {
    let mut nonce = [0; 32];
    let filled = rustix::rand::getrandom(&mut nonce, rustix::rand::GetRandomFlags::empty());
    match filled.map_err(|error| Error::io(error.into()))? {
        32 => Ok(nonce),
        _ => Err(Error::new(
            ErrorKind::Io,
            "the system has no random numbers",
        )),
    }
}

/// Returns the name of this machine.
fn machine() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let name: String = name.trim().chars().take(64).collect();
    if name.is_empty() {
        "unknown".to_owned()
    } else {
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The ends of a worker and a trainer.
    fn connected() -> [Ends; 2] {
        let (worker, trainer) = tokio::io::duplex(1 << 16);
        [worker, trainer].map(|side| {
            let (read, write) = tokio::io::split(side);
            Ends::new(Box::pin(read), Box::pin(write), [0; 32])
        })
    }

    #[test]
    fn row_144_another_version_of_the_protocol_is_refused_by_name_on_both_sides() {
        let [mut worker, mut trainer] = connected();
        let enters = async {
            // The greeting of a later version of the protocol: its number, then unknown fields.
            let about = (
                MAGIC.to_owned(),
                PROTOCOL + 1,
                "more than this one knows".to_owned(),
            );
            worker.send(&about).await.unwrap();
            worker.receive(verdict).await.unwrap_err()
        };
        let (told, refused) =
            crate::run::block_on(async { futures::join!(enters, let_in(&mut trainer, "token")) });
        let refused = refused.map(drop).unwrap_err();
        for error in [told, refused] {
            let why = format!(
                "it speaks version {} of the protocol, and this program version {PROTOCOL}",
                PROTOCOL + 1
            );
            assert_eq!(error.kind(), ErrorKind::Denied);
            assert!(error.message().contains(&why), "{error}");
        }
    }
}
