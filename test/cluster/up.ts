// `npm run cluster`: a Kubernetes on this machine that runs until Ctrl-C. Prints how to use it.
import { chmodSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { untilSignal } from '../../src/cli/lib/run-until-signal.ts';
import { bedTools, startBed } from './bed/bed.ts';

const say = (line: string) => console.error(line);
const tools = bedTools(say);
if (!tools.ok) {
  console.error(`no test cluster here: ${tools.reason}`);
  process.exit(2);
}
const stopped = untilSignal();
const started = performance.now();
const bed = await startBed(tools, say);
const kubectl = join(bed.folder, 'kubectl');
const args = ['nsenter', '-t', String(bed.namespaces.pid), '-m', '-n', join(tools.bin, 'kubectl')];
writeFileSync(kubectl, `#!/bin/sh\nexec ${args.join(' ')} --kubeconfig ${join(bed.folder, 'kubeconfig')} "$@"\n`);
chmodSync(kubectl, 0o755);
say(
  `up after ${Math.round((performance.now() - started) / 1000)} s; its network is its own, so talk to it with ${kubectl}`,
);
say('Ctrl-C ends it and leaves nothing behind');
await stopped;
await bed.close();
say('demo stopped');
