// Prints what Chrome's trace engine, the reader of DevTools, finds in a trace: the number of slices of each name, and
// their nanoseconds, for each track. Run as `node trace_engine.mjs FOLDER/node_modules TRACE`.
import fs from 'node:fs';
import { pathToFileURL } from 'node:url';

const [modules, trace] = process.argv.slice(2);
const engine = await import(pathToFileURL(`${modules}/@paulirish/trace_engine/models/trace/trace.js`));
const processor = engine.Processor.TraceProcessor.createWithAllHandlers();
await processor.parse(JSON.parse(fs.readFileSync(trace)), {});
const tracks = {};
for (const { threads } of processor.data.Renderer.processes.values()) {
    for (const { name, entries } of threads.values()) {
        const slices = (tracks[name] ??= {});
        for (const slice of entries) {
            const [number, time] = slices[slice.name] ?? [0, 0];
            slices[slice.name] = [number + 1, time + Math.round(slice.dur * 1000)];
        }
    }
}
console.log(JSON.stringify(tracks));
