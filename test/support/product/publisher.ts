// A CSI driver whose answers a test chooses by files: publisher.ts FOLDER KUBELET_ROOT. Each event is printed as a line
// of JSON.
//   FOLDER/pods/POD   names of the containers of a pod that gets a volume; other pods are refused
//   FOLDER/broken     while it exists, publishing fails as if the API server were unreachable
//   FOLDER/die        while it exists, the driver is killed after a volume is mounted and written, before it answers
//   the kubelet

import { closeSync, existsSync, openSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { makeFile } from '../../../src/agent/grants/files.ts';
import { libraries } from '../../../src/agent/grants/registry.ts';
import { startCsi, VolumeRefused } from '../../../src/agent/kubelet/csi/driver.ts';
import { ledgerPath, mountVolume, pagePath, withWritable } from '../../../src/agent/kubelet/csi/volume.ts';
import { loadNative } from '../../../src/agent/os/addon.ts';
import { loggerTo } from './logger.ts';

export type PublisherReport =
  | { readonly what: 'ready' }
  | { readonly what: 'publish'; readonly pod: string; readonly mounted: boolean; readonly ms: number }
  | { readonly what: 'unpublish'; readonly podUid: string; readonly target: string }
  | { readonly what: 'problem'; readonly text: string };

const SLOTS = 64;
const GPU = {
  uuid: 'GPU-00112233-4455-6677-8899-aabbccddeeff',
  memoryBytes: 1 << 30,
  contextBytes: 0,
  granuleBytes: 0,
  coresPercent: 50,
  releasesLate: false,
};

const [folder = '', kubeletRoot = ''] = process.argv.slice(2);
const native = loadNative();
const print = (report: PublisherReport) => console.log(JSON.stringify(report));

function fill(target: string, containers: readonly string[]): void {
  const ledgerBytes = native.ledgerBytes(SLOTS, 1);
  mountVolume(native, { target, containers, ledgerBytes, libraries: libraries() });
  const open = (path: string, mode: number) => (existsSync(path) ? openSync(path, 'r+') : makeFile(path, mode));
  withWritable(native, target, () => {
    for (const name of containers) {
      const fd = open(pagePath(target, name), 0o644);
      native.writePage(fd, { slots: SLOTS, isolateMemory: true, gpus: [GPU] });
      closeSync(fd);
    }
  });
  for (const name of containers) {
    if (existsSync(ledgerPath(target, name))) continue;
    const fd = makeFile(ledgerPath(target, name), 0o666);
    native.initLedger(fd, SLOTS, 1);
    closeSync(fd);
  }
}

const csi = await startCsi({
  kubeletRoot,
  nodeName: 'node-1',
  publisher: {
    async publish({ namespace, pod, target, mounted }) {
      const started = performance.now();
      const path = join(folder, 'pods', pod);
      try {
        if (existsSync(join(folder, 'broken'))) throw new Error('the API server does not answer');
        if (!existsSync(path))
          throw new VolumeRefused(`pod ${namespace}/${pod} has no grant; was it bound by another scheduler?`);
        fill(target, readFileSync(path, 'utf8').trim().split(' '));
        if (existsSync(join(folder, 'die'))) process.kill(process.pid, 'SIGKILL');
      } finally {
        print({ what: 'publish', pod, mounted, ms: performance.now() - started });
      }
    },
    unpublish: ({ podUid, target }) => print({ what: 'unpublish', podUid, target }),
  },
  onResult: () => {},
  log: loggerTo({ push: (text) => print({ what: 'problem', text }) }),
});
print({ what: 'ready' });
process.once('SIGTERM', () => void csi.close());
