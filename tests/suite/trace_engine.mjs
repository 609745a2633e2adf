// Prints what Chrome's trace engine, the reader of DevTools, finds in a trace: the number of slices of each name, and
// their nanoseconds, for each track; the number of arrows between the slices of two names; and the values of each
// counter. Run as `node trace_engine.mjs FOLDER/node_modules TRACE`.
import fs from 'node:fs';
import { pathToFileURL } from 'node:url';

const [modules, trace] = process.argv.slice(2);
const engine = await import(pathToFileURL(`${modules}/@paulirish/trace_engine/models/trace/trace.js`));
const { Events, Configuration } = engine.Types;
// The engine itself draws arrows and counters of browsers only, and gives all that it has read to its handlers.
const ends = {}, counters = {};
const handler = {
    reset() {},
    handleEvent(event) {
        if (Events.isFlowPhaseEvent(event)) (ends[event.id] ??= {})[event.ph] = event;
        else if (event.ph === Events.Phase.COUNTER) (counters[event.name] ??= []).push(event.args.morsels ?? event.args.bytes);
    },
    async finalize() {},
    data: () => ({}),
};
const handlers = { ...engine.Handlers.ModelHandlers, Datapipes: handler };
const processor = new engine.Processor.TraceProcessor(handlers, Configuration.defaults());
await processor.parse(JSON.parse(fs.readFileSync(trace)), {});
const { processes } = processor.data.Renderer;
const tracks = {};
for (const { threads } of processes.values()) {
    for (const { name, entries } of threads.values()) {
        const slices = (tracks[name] ??= {});
        for (const slice of entries) {
            const [number, time] = slices[slice.name] ?? [0, 0];
            slices[slice.name] = [number + 1, time + Math.round(slice.dur * 1000)];
        }
    }
}
// The innermost slice at the end of an arrow; times have three decimals.
const around = ({ pid, tid, ts }) => processes.get(pid).threads.get(tid).entries
    .findLast((slice) => slice.ts <= ts && ts <= slice.ts + slice.dur + 0.002);
const arrows = {};
for (const { s, f } of Object.values(ends)) {
    const between = `${around(s).name} → ${around(f).name}`;
    arrows[between] = (arrows[between] ?? 0) + 1;
}
console.log(JSON.stringify({ tracks, arrows, counters }));
