//! Parts of a graph that run in processes of their own: how a child process makes its copy of the
//! part, and how items are sent.
//!
//! Closures cannot be sent. But a child is the same executable, so a function without captures has
//! the same distance from any other function in both processes. A part is therefore sent as the
//! position of the function that makes it, and the settings for that function.

use std::marker::PhantomData;
use std::sync::Arc;

use super::{Graph, Hints, Input, Node, Op};
use crate::codec::{ChunkWire, Parcel, WireOf, damaged};
use crate::pipe::crossing::{Crossing, Make};
use crate::{Context, Error, Items, Processes, Reader, Result, Source, Wire, Writer};

/// A part of a graph that runs in processes of its own.
pub(crate) struct Part {
    /// Settings of the user; `None` for a pipe that asks for a process by itself.
    pub processes: Option<Processes>,
    pub recipe: Recipe,
    pub input: Arc<dyn ChunkWire>,
    pub output: Arc<dyn ChunkWire>,
}

/// Instructions for making a part, in this process or another one of the same executable.
#[derive(Clone)]
pub(crate) struct Recipe {
    build: BuildPart,
    /// The user's function, for `build`, which knows its type.
    part: *const (),
    settings: Arc<Parcel>,
}

// SAFETY: the pointer is that of a function; it is never read through.
unsafe impl Send for Recipe {}
// SAFETY: as above.
unsafe impl Sync for Recipe {}

/// Makes a part downstream of `above`, or of an [`Inlet`].
type BuildPart =
    fn(part: *const (), settings: &mut Reader<'_>, above: Option<Input>) -> Result<MadePart>;

/// A part that was made, and the encoding of its input and output.
pub(crate) struct MadePart {
    pub root: Input,
    pub input: Arc<dyn ChunkWire>,
    pub output: Arc<dyn ChunkWire>,
}

impl MadePart {
    fn new<T: Wire, U: Wire>(graph: Graph<U>) -> MadePart {
        MadePart {
            root: graph.input(),
            input: WireOf::<T>::new(),
            output: WireOf::<U>::new(),
        }
    }
}

/// Describes a part, a line for each node, so that parent and child can check that they made the
/// same part.
pub(crate) fn signature<'a>(
    nodes: impl Iterator<Item = &'a Node>,
    input: &dyn ChunkWire,
    output: &dyn ChunkWire,
) -> String {
    let mut lines = format!("{} to {}\n", input.type_name(), output.type_name());
    for Node { kind, hints, .. } in nodes {
        let Hints {
            is_shardable,
            is_shardable_by_parent,
            work,
            arity,
            settings,
            ..
        } = hints;
        lines += &format!(
            "{kind}({settings}) {work:?} {arity:?} {is_shardable} {is_shardable_by_parent}\n"
        );
    }
    lines
}

impl Recipe {
    fn new(build: BuildPart, part: *const (), settings: &impl Wire) -> Result<Recipe> {
        let mut writer = Writer::new();
        settings.encode(&mut writer)?;
        Recipe::of(build, part, Parcel::of(writer))
    }

    fn of(build: BuildPart, part: *const (), settings: Parcel) -> Result<Recipe> {
        if !is_ours(build as usize) || !is_ours(part as usize) {
            let message = "its function is not in the executable, but in a library, which another process may have elsewhere";
            return Err(Error::unsupported(message));
        }
        Ok(Recipe {
            build,
            part,
            settings: Arc::new(settings),
        })
    }

    /// Makes the part, downstream of `above` or of an inlet.
    pub(crate) fn make(&self, above: Option<Input>) -> Result<MadePart> {
        let mut settings = self.settings.reader();
        let made = (self.build)(self.part, &mut settings, above)?;
        settings.end()?;
        Ok(made)
    }
}

/// Returns an address that is the same in every process of this executable, relative to where the
/// executable was loaded.
fn anchor() -> usize {
    static ANCHOR: u8 = 0;
    &raw const ANCHOR as usize
}

/// Returns true if the code at an address belongs to this executable, not to a library, which
/// another process may have at another place.
#[cfg(target_os = "linux")]
fn is_ours(address: usize) -> bool {
    static CODE: std::sync::OnceLock<Vec<std::ops::Range<usize>>> = std::sync::OnceLock::new();
    let code = CODE.get_or_init(|| {
        // from-to rights offset device inode name
        let maps = std::fs::read_to_string("/proc/self/maps").unwrap_or_default();
        let mappings: Vec<_> = maps
            .lines()
            .filter_map(|line| {
                let mut words = line.split_ascii_whitespace();
                let (from, to) = words.next()?.split_once('-')?;
                let range =
                    usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(to, 16).ok()?;
                let (rights, file) = (words.next()?, (words.nth(1)?, words.next()?));
                Some((range, rights.contains('x'), file))
            })
            .collect();
        let ours = mappings
            .iter()
            .find(|(range, ..)| range.contains(&anchor()))
            .map(|(.., file)| *file);
        let ours = mappings
            .iter()
            .filter(|(_, runs, file)| *runs && Some(*file) == ours);
        ours.map(|(range, ..)| range.clone()).collect()
    });
    code.iter().any(|range| range.contains(&address))
}

#[cfg(not(target_os = "linux"))]
fn is_ours(_: usize) -> bool {
    true
}

/// Encodes functions as their distance from an anchor, for a process that runs this very
/// executable; the parent ensures that.
impl Wire for Recipe {
    fn encode<'a>(&'a self, to: &mut Writer<'a>) -> Result<()> {
        for address in [self.build as usize, self.part as usize] {
            to.raw(&(address.wrapping_sub(anchor()) as u64).to_le_bytes());
        }
        to.payload(&self.settings.head);
        to.number(self.settings.payloads.len() as u64);
        self.settings
            .payloads
            .iter()
            .for_each(|payload| to.payload(payload));
        Ok(())
    }

    fn decode(from: &mut Reader<'_>) -> Result<Self> {
        let mut address = || u64::decode(from).map(|far| (far as usize).wrapping_add(anchor()));
        let (build, part) = (address()?, address()?);
        if !is_ours(build) || !is_ours(part) {
            return Err(damaged("a function that is none"));
        }
        let head = from.payload()?;
        let payloads = (0..from.count()?)
            .map(|_| from.payload())
            .collect::<Result<_>>()?;
        Ok(Recipe {
            // SAFETY: the parent, which runs the same executable (it started this process by the
            // descriptor of its own executable), wrote the distance of a function of this type.
            // Nobody else holds the other end of the socket.
            build: unsafe { std::mem::transmute::<usize, BuildPart>(build) },
            part: part as *const (),
            settings: Arc::new(Parcel { head, payloads }),
        })
    }
}

/// The input of a part in a child process: a place in the graph that the executor fills.
struct Inlet<T>(PhantomData<fn() -> T>);

impl<T: Send + 'static> Source for Inlet<T> {
    type Out = T;
    fn open(&self, _: &Context) -> Items<T> {
        Items::fail(Error::config("an inlet is filled by the executor"))
    }
    fn name(&self) -> String {
        "inlet".to_owned()
    }
}

impl<T: Send + 'static> Graph<T> {
    fn below(above: Option<Input>) -> Graph<T> {
        match above {
            Some(Input { node, port }) => Graph {
                node,
                port,
                out: PhantomData,
            },
            None => Graph::source(Inlet::<T>(PhantomData)),
        }
    }
}

fn build_part<T: Wire, U: Wire>(
    part: *const (),
    settings: &mut Reader<'_>,
    above: Option<Input>,
) -> Result<MadePart> {
    <()>::decode(settings)?;
    // SAFETY: `in_processes` put the pointer there together with this function, which has the
    // types.
    let part = unsafe { std::mem::transmute::<*const (), fn(Graph<T>) -> Graph<U>>(part) };
    Ok(MadePart::new::<T, U>(part(Graph::below(above))))
}

fn build_part_with<T: Wire, S: Wire, U: Wire>(
    part: *const (),
    settings: &mut Reader<'_>,
    above: Option<Input>,
) -> Result<MadePart> {
    let settings = S::decode(settings)?;
    // SAFETY: `in_processes_with` put the pointer there together with this function, which has the
    // types.
    let part = unsafe { std::mem::transmute::<*const (), fn(Graph<T>, &S) -> Graph<U>>(part) };
    Ok(MadePart::new::<T, U>(part(Graph::below(above), &settings)))
}

fn build_pipe<In: Send + 'static, Out: Send + 'static>(
    make: *const (),
    settings: &mut Reader<'_>,
    above: Option<Input>,
) -> Result<MadePart> {
    // SAFETY: `Part::of_pipe` put the pointer there together with this function, which has the
    // types.
    let make = unsafe { std::mem::transmute::<*const (), Make<In, Out>>(make) };
    let pipe = make(settings)?;
    let Some(Crossing { input, output, .. }) = pipe.crossing() else {
        return Err(Error::config(
            "after it was sent to a child process, the pipe returns no `Pipe::crossing`",
        ));
    };
    Ok(MadePart {
        root: Graph::<In>::below(above).pipe(pipe).input(),
        input,
        output,
    })
}

impl Part {
    /// Makes the part of a pipe that wants processes of its own.
    pub(super) fn of_pipe<In: Send + 'static, Out: Send + 'static>(
        crossing: Crossing<In, Out>,
    ) -> Result<Part> {
        let Crossing {
            settings,
            make,
            input,
            output,
            ..
        } = crossing;
        let recipe = Recipe::of(build_pipe::<In, Out>, make as *const (), settings?)?;
        Ok(Part {
            processes: None,
            recipe,
            input,
            output,
        })
    }
}

impl<T: Wire> Graph<T> {
    /// Runs a part of the graph in processes of its own: for a step that calls a library which may
    /// crash, leak, hang or is not thread-safe.
    ///
    /// `part` adds steps to the graph it is given. It is a function or a closure *without
    /// captures*, because the other processes call it, too;
    /// [`in_processes_with`](Graph::in_processes_with) passes settings to it. All of its steps have
    /// to be shardable (maps, filters, decoders, loaders), and its input and output have to be
    /// [`Wire`].
    ///
    /// The processes are this executable, started again: [`worker::init`](crate::worker::init) has
    /// to be the first line of `main`. They all start when the first item arrives, and are kept
    /// from epoch to epoch; two epochs at once have twice as many. They end with the loader, or
    /// with this process, however that ends. `part` is called here once, and once in each of them;
    /// it has to make the same steps each time, from nothing but its settings. On anything but
    /// Linux the part runs in this process, on threads; with `workers(0)` on the consumer's thread.
    /// There, a crash ends the program.
    ///
    /// - **Order and result** are the same as without processes.
    /// - **Cost**: up to a tenth of a millisecond of CPU for a piece of work, which is one item or
    ///   as many as take a millisecond. A large slice or [`Tensor`](crate::Tensor) in the output is
    ///   copied once, by the child, into memory that both share.
    /// - **Errors and panics** arrive as they do from threads, with their messages; a cause can no
    ///   longer be downcast.
    /// - **A process that ends** (a signal, `exit`, out of memory, [no answer in
    ///   time](Processes::time_limit)) is replaced, and its piece of work is done again, item by
    ///   item. The item that ends the replacement as well becomes an error, [`ErrorKind::Crashed`](crate::ErrorKind::Crashed),
    ///   with the cause and the process's last words; [`OnError`](crate::OnError) decides what
    ///   follows. All other items are delivered once, in order.
    /// - **Output of a child**: lines that it prints and events for `tracing` arrive in this
    ///   process's `tracing`, with the child's node and number. Their target is `datapipes::child`,
    ///   and printed lines have the level INFO. Without a subscriber, printed lines go to standard
    ///   error. The level that `tracing` wants is read when the loader is built.
    /// - **Children end by `SIGKILL`**: no destructor, no `atexit`, nothing is flushed. No child
    ///   makes a core file, gains privileges (no `sudo`), or survives for long where memory runs
    ///   out (`oom_score_adj`). Processes that a child puts into a process group of their own
    ///   (`setsid`) are not ended.
    ///
    /// # Errors
    /// From `build()`: a step that is no pipe, or not shardable; settings that cannot be written;
    /// `worker::init` was not called; code in a shared library (a Python extension) instead of the
    /// executable. From an epoch: [`ErrorKind::Worker`](crate::ErrorKind::Worker) if processes cannot be started or end again
    /// and again, [`ErrorKind::Config`](crate::ErrorKind::Config) if one makes another part than this process.
    ///
    /// # Examples
    /// ```
    /// use datapipes::{DataLoader, Graph};
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     datapipes::worker::init();
    ///     let graph = Graph::range(0..100).in_processes(2, |numbers| numbers.map(|n| n * n)).batch(10);
    ///     let loader = DataLoader::builder(graph).build()?;
    ///     let batches = loader.epoch(0).blocking().collect::<Result<Vec<_>, _>>()?;
    ///     assert_eq!(batches[9][9], 99 * 99);
    ///     Ok(())
    /// }
    /// ```
    /// A part whose items cannot be sent does not compile:
    /// ```compile_fail,E0277
    /// # use datapipes::Graph;
    /// struct Handle(*mut u8);
    /// unsafe impl Send for Handle {}
    /// Graph::range(0..3).in_processes(2, |g| g.map(|_| Handle(std::ptr::null_mut())));
    /// ```
    pub fn in_processes<U: Wire>(
        self,
        processes: impl Into<Processes>,
        part: fn(Graph<T>) -> Graph<U>,
    ) -> Graph<U> {
        let recipe = Recipe::new(build_part::<T, U>, part as *const (), &());
        self.part(processes.into(), recipe, part)
    }

    /// Does the same as [`in_processes`](Graph::in_processes), for a part with settings, which are
    /// sent to the other processes.
    ///
    /// ```
    /// use datapipes::{DataLoader, Graph};
    ///
    /// fn main() -> Result<(), Box<dyn std::error::Error>> {
    ///     datapipes::worker::init();
    ///     let factor = std::env::args().count() as u64;
    ///     let graph = Graph::range(0..4).in_processes_with(2, factor, |numbers, &factor| {
    ///         numbers.map(move |n| n * factor)
    ///     });
    ///     let loader = DataLoader::builder(graph).build()?;
    ///     assert_eq!(loader.epoch(0).blocking().collect::<Result<Vec<_>, _>>()?, [0, 1, 2, 3]);
    ///     Ok(())
    /// }
    /// ```
    pub fn in_processes_with<S: Wire, U: Wire>(
        self,
        processes: impl Into<Processes>,
        settings: S,
        part: fn(Graph<T>, &S) -> Graph<U>,
    ) -> Graph<U> {
        let recipe = Recipe::new(build_part_with::<T, S, U>, part as *const (), &settings);
        self.part(processes.into(), recipe, |graph| part(graph, &settings))
    }

    /// Runs a part of the graph on other machines, which come and go as they like.
    ///
    /// `part` is as for [`in_processes`](Graph::in_processes): a function or closure without
    /// captures, of shardable steps. A worker is the same executable, started on another machine
    /// with the address of this one in a variable; [`worker::init`](crate::worker::init), the first
    /// line of `main`, then does the rest, and never returns:
    ///
    /// ```text
    /// DATAPIPES_WORKER=tcp://trainer:7070 DATAPIPES_TOKEN=… ./train
    /// ```
    ///
    /// Over TLS it is `tls://`, see `Remote::tls` (feature `remote-tls`).
    ///
    /// It keeps as many processes as the machine has CPUs (`DATAPIPES_WORKER_PROCESSES`), each with
    /// a connection of its own, and connects again when the trainer starts again. On SIGTERM it
    /// ends its jobs first. With `DATAPIPES_WORKER_IDLE=300` it ends when it has found no trainer
    /// for 300 seconds. Files are read where the part says, so on the worker's machine.
    ///
    /// - **Order, result, randomness and resume** are those of the same steps without workers,
    ///   however many there are, and whatever happens to them: an item depends on nothing but its
    ///   input, its place, and the seed. The trainer alone knows what was delivered.
    /// - **A worker that is lost**: its pieces of work go to others at once. What it has delivered
    ///   is not delivered again. An item that crashes several workers in a row is an error of
    ///   [`ErrorKind::Crashed`](crate::ErrorKind::Crashed), and [`OnError`](crate::OnError) decides; a connection that is cut
    ///   blames no item.
    /// - **A worker that is silent** for much longer than others were loses its work to another
    ///   one, see [`Remote::time_limit`](crate::Remote::time_limit).
    /// - **A machine that cannot make the part** (a file is missing there, for example) is refused, and
    ///   others work on.
    /// - **Several parts, loaders or running epochs** share the workers of one [`Remote`](crate::Remote)
    ///   and its clones.
    /// - **Nobody there**: work waits for [`Remote::wait`](crate::Remote::wait), or is done here
    ///   ([`Remote::or_here`](crate::Remote::or_here)).
    /// - **Refused**, with the reason in both logs: another executable, another version of the
    ///   protocol, another token, a certificate that is not trusted.
    /// - **Cost**: outputs cross the network uncompressed, and are copied once on each side. A part
    ///   that ends with small items (`u8` pixels instead of `f32`) costs less.
    /// - **Memory**: beside the bytes that the loader promises, this process holds one message of each
    ///   worker, which is an item, or 256 KiB of small ones. While workers are connected, up to 128 MiB of
    ///   memory of tensors that are gone are kept for the next ones.
    /// - **Output** that a worker prints stays on its machine; its events for `tracing` arrive in
    ///   this process's.
    ///
    /// On anything but Linux, and with `workers(0)`, the part runs in this process.
    ///
    /// # Errors
    /// From `build()`: as `in_processes`; an address that others can reach without a token. From an
    /// epoch: [`ErrorKind::Worker`](crate::ErrorKind::Worker) if nobody comes in time, [`ErrorKind::Config`](crate::ErrorKind::Config) if others share
    /// the workers with another token or certificate, or a worker makes another part.
    ///
    /// # Examples
    /// ```no_run
    /// use datapipes::{DataLoader, Graph, Remote};
    ///
    /// fn main() -> Result<(), datapipes::BoxError> {
    ///     datapipes::worker::init();
    ///     let workers = Remote::listen("0.0.0.0:7070")?;
    ///     let graph = Graph::range(0..100).on_workers(workers, |numbers| numbers.map(|n| n * n)).batch(10);
    ///     let loader = DataLoader::builder(graph).build()?;
    ///     for batch in loader.epoch(0).blocking() {
    ///         println!("{:?}", batch?);
    ///     }
    ///     Ok(())
    /// }
    /// ```
    #[cfg(feature = "remote")]
    pub fn on_workers<U: Wire>(
        self,
        remote: crate::Remote,
        part: fn(Graph<T>) -> Graph<U>,
    ) -> Graph<U> {
        self.in_processes(remote.processes(), part)
    }

    /// Runs a part with settings as [`on_workers`](Graph::on_workers) does. The settings are sent
    /// to the workers.
    #[cfg(feature = "remote")]
    pub fn on_workers_with<S: Wire, U: Wire>(
        self,
        remote: crate::Remote,
        settings: S,
        part: fn(Graph<T>, &S) -> Graph<U>,
    ) -> Graph<U> {
        self.in_processes_with(remote.processes(), settings, part)
    }

    fn part<U: Wire>(
        self,
        processes: Processes,
        recipe: Result<Recipe>,
        part: impl FnOnce(Graph<T>) -> Graph<U>,
    ) -> Graph<U> {
        let above = self.root();
        let made = part(self);
        let marked = recipe
            .map_err(|error| {
                format!("the settings of its part cannot be sent to a child process: {error}")
            })
            .and_then(|recipe| {
                let (input, output) = (WireOf::<T>::new(), WireOf::<U>::new());
                let part = Arc::new(Part {
                    processes: Some(processes),
                    recipe,
                    input,
                    output,
                });
                mark(&made.root(), &above, &part)
            });
        match marked {
            Ok(Input { node, .. }) if Arc::ptr_eq(&node, &above.node) => {
                made.wrong("a part in processes without a step in it".to_owned())
            }
            Ok(Input { node, port }) => Graph {
                node,
                port,
                out: PhantomData,
            },
            Err(problem) => made.wrong(problem),
        }
    }
}

impl<T: Send + 'static> Graph<T> {
    /// Adds a problem, which the checker will report for the last node.
    fn wrong(self, problem: String) -> Self {
        self.edit(|node| node.hints.problems.push(problem))
    }
}

/// Marks the nodes from `root` up to `above` as members of this part.
fn mark(root: &Input, above: &Input, part: &Arc<Part>) -> std::result::Result<Input, String> {
    if Arc::ptr_eq(&root.node, &above.node) && root.port == above.port {
        return Ok(root.clone());
    }
    let node = &root.node;
    let name = node.given_name.as_deref().unwrap_or(&node.kind);
    if node
        .part
        .as_ref()
        .is_some_and(|part| part.processes.is_some())
    {
        return Err(format!(
            "`{name}` is in processes already, inside of a part that is"
        ));
    }
    match (&node.op, &node.inputs[..]) {
        (Op::Pipe(_), [input]) => {
            let input = mark(input, above, part)?;
            let node = Node { inputs: vec![input], part: Some(part.clone()), ..(**node).clone() };
            Ok(Input { node: Arc::new(node), port: root.port })
        }
        (Op::Source(_), _) => Err(
            "a part in processes has to add steps to the graph it is given, and leave that as it is: no sources, and no other name for \
             what is above"
                .to_owned(),
        ),
        _ => Err(format!("`{name}` cannot be in a part in processes: only steps with one input and one output can")),
    }
}
