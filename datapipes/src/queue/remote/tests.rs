use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use proptest::prelude::*;
use tokio::io::{AsyncWrite, AsyncWriteExt, DuplexStream};

use super::{RemotePut, RemoteTake, memory};
use crate::codec::{Parcel, Writer};
use crate::queue::{Limits, Weight};
use crate::{ErrorKind, Wire};

const WIDE: Limits = Limits {
    items: 1 << 20,
    bytes: 1 << 30,
};
const ONE: Weight = Weight { items: 1, bytes: 8 };
const MOST: u64 = 1 << 30;

fn run<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread()
        .build()
        .unwrap()
        .block_on(future)
}

/// A queue whose stream holds `buffer` bytes.
fn queue(buffer: usize, limits: Limits) -> (RemotePut, RemoteTake) {
    let (write, read): (DuplexStream, DuplexStream) = tokio::io::duplex(buffer);
    (
        RemotePut::new(Box::pin(write), limits),
        RemoteTake::new(Box::pin(read), MOST),
    )
}

async fn next(take: &mut RemoteTake) -> Option<Parcel> {
    poll_fn(|cx| take.poll_parcel(cx)).await
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    /// Small and large values arrive as they were, in order, whatever the stream takes at once.
    #[test]
    fn values_arrive(
        sizes in prop::collection::vec(prop_oneof![0usize..100, 60_000usize..70_000, 150_000usize..200_000], 0..8),
        buffer in 1usize..300_000,
    ) {
        let values: Vec<Vec<Bytes>> = sizes
            .chunks(2)
            .map(|sizes| sizes.iter().map(|&size| Bytes::from(vec![size as u8; size])).collect())
            .collect();
        run(async {
            let (mut put, mut take) = queue(buffer, WIDE);
            let send = async {
                for value in &values {
                    let mut writer = Writer::new();
                    value.encode(&mut writer).unwrap();
                    put.send(writer, ONE).unwrap();
                }
                poll_fn(|cx| put.poll_flush(cx)).await.unwrap();
                drop(put);
            };
            let receive = async {
                let mut received = Vec::new();
                while let Some(parcel) = next(&mut take).await {
                    received.push(Vec::<Bytes>::decode(&mut parcel.reader()).unwrap());
                }
                assert!(take.fault().is_none());
                received
            };
            let ((), received) = futures::join!(send, receive);
            assert_eq!(received, values);
        });
    }
}

#[test]
fn a_reader_that_does_not_read_holds_up_the_writer() {
    let limits = Limits {
        items: 3,
        bytes: 1 << 20,
    };
    run(async {
        let (mut put, mut take) = queue(16, limits);
        let mut room = Vec::new();
        while let std::task::Poll::Ready(Some(free)) =
            futures::poll!(poll_fn(|cx| put.poll_ready(cx)))
        {
            room.push(free);
            let mut writer = Writer::new();
            writer.raw(&[7; 100]);
            put.send(writer, ONE).unwrap();
        }
        assert_eq!(room, [3, 2, 1]);
        // The messages went together, so they leave together.
        let (room, parcel) = futures::join!(poll_fn(|cx| put.poll_ready(cx)), async {
            for _ in 0..2 {
                assert_eq!(next(&mut take).await.unwrap().head[..], [7; 100]);
            }
            next(&mut take).await
        });
        assert_eq!(room, Some(3));
        assert_eq!(parcel.unwrap().head[..], [7; 100]);
    });
}

#[test]
fn a_stream_that_is_cut_is_a_fault_and_one_that_ends_is_none() {
    run(async {
        for (bytes, is_cut) in [
            (&b""[..], false),
            (b"\x03\0", true),
            (b"\x03\0\0\0\0\0\0\0ab", true),
        ] {
            let (mut write, read) = tokio::io::duplex(64);
            write.write_all(bytes).await.unwrap();
            drop(write);
            let mut take = RemoteTake::new(Box::pin(read), MOST);
            assert!(next(&mut take).await.is_none());
            assert_eq!(take.fault().is_some(), is_cut);
        }
    });
}

#[test]
fn what_cannot_be_a_message_is_refused_before_memory_is_made() {
    let mut many = vec![0; 8];
    many[4..].copy_from_slice(&2u32.to_le_bytes());
    many.extend([(1u64 << 62).to_le_bytes(); 2].concat());
    run(async {
        for bytes in [vec![0xff; 64], many] {
            let (mut write, read) = tokio::io::duplex(64);
            write.write_all(&bytes).await.unwrap();
            let mut take = RemoteTake::new(Box::pin(read), 4096);
            assert!(next(&mut take).await.is_none());
            let fault = take.fault().unwrap();
            assert_eq!(fault.kind(), ErrorKind::Protocol);
            assert!(fault.to_string().contains("too large"), "{fault}");
        }
    });
}

#[test]
fn nobody_there_is_noticed_by_the_writer() {
    run(async {
        let (mut put, take) = queue(16, WIDE);
        drop(take);
        let mut writer = Writer::new();
        writer.raw(&[7; 100]);
        put.send(writer, ONE).unwrap();
        assert!(poll_fn(|cx| put.poll_flush(cx)).await.is_err());
        assert_eq!(poll_fn(|cx| put.poll_ready(cx)).await, None);
    });
}

/// A stream that keeps what was written until it is flushed, as TLS does, and where each second poll
/// of a flush has to wait.
struct Keeping {
    to: DuplexStream,
    kept: Vec<u8>,
    waits: bool,
}

impl AsyncWrite for Keeping {
    fn poll_write(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        self.kept.extend_from_slice(bytes);
        Poll::Ready(Ok(bytes.len()))
    }
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        this.waits = !this.waits;
        if this.waits {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        while !this.kept.is_empty() {
            let len = ready!(Pin::new(&mut this.to).poll_write(cx, &this.kept))?;
            this.kept.drain(..len);
        }
        Poll::Ready(Ok(()))
    }
    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

#[test]
fn a_stream_that_keeps_its_end_is_flushed() {
    // Sent with others, and directly.
    for len in [100, 200_000] {
        run(async {
            let (to, read) = tokio::io::duplex(1 << 20);
            let write = Keeping {
                to,
                kept: Vec::new(),
                waits: false,
            };
            let mut put = RemotePut::new(Box::pin(write), WIDE);
            let mut take = RemoteTake::new(Box::pin(read), MOST);
            let mut writer = Writer::new();
            writer.raw(&vec![7; len]);
            put.send(writer, ONE).unwrap();
            poll_fn(|cx| put.poll_flush(cx)).await.unwrap();
            assert_eq!(
                futures::poll!(std::pin::pin!(next(&mut take)))
                    .map(|parcel| parcel.unwrap().head.len()),
                Poll::Ready(len)
            );
        });
    }
}

#[test]
fn memory_of_what_waits_is_used_again() {
    let is_kept = || {
        run(async {
            let (mut put, mut take) = queue(1 << 16, WIDE);
            // A length that no other test has, since all tests share the memory.
            let value = Bytes::from(vec![7; 9 << 20]);
            let mut writer = Writer::new();
            value.encode(&mut writer).unwrap();
            let frame = put.prepare(writer).unwrap();
            let place = frame.0.as_ptr();
            put.put(frame, ONE);
            let flush = poll_fn(|cx| put.poll_flush(cx));
            let (flushed, parcel) = futures::join!(flush, next(&mut take));
            flushed.unwrap();
            assert_eq!(Bytes::decode(&mut parcel.unwrap().reader()).unwrap(), value);
            let mut kept = std::iter::from_fn(|| memory::take(value.len()));
            kept.any(|kept| kept.as_ptr() == place)
        })
    };
    // Another test may have taken the memory out of the pool, or filled the pool.
    assert!((0..20).any(|_| is_kept()));
}

#[test]
fn memory_of_slices_is_used_again() {
    run(async {
        let (mut put, mut take) = queue(1 << 20, WIDE);
        let mut places = std::collections::BTreeSet::new();
        for round in 0..20u8 {
            let mut writer = Writer::new();
            let value = Bytes::from(vec![round; 100_000]);
            value.encode(&mut writer).unwrap();
            put.send(writer, ONE).unwrap();
            let flush = poll_fn(|cx| put.poll_flush(cx));
            let (flushed, parcel) = futures::join!(flush, next(&mut take));
            flushed.unwrap();
            let parcel = parcel.unwrap();
            let value = Bytes::decode(&mut parcel.reader()).unwrap();
            assert_eq!(value[..], [round; 100_000]);
            places.insert(value.as_ptr() as usize);
        }
        // Other tests may take the memory in between.
        assert!(places.len() < 20);
    });
}
