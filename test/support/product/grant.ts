// The files of a container without an agent: limits page, ledger and the interposer, as a mount would provide them.
import { execFileSync } from 'node:child_process';
import { mkdirSync, readFileSync, symlinkSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { mountedObject } from '../../../src/agent/containers/mounted-object.ts';
import { BUILD, interposerFiles, type SimulatedNode, type Teardown, temporaryFolder } from '../native/node.ts';

export const MIB = 1024 * 1024;

export type GrantFiles = {
  readonly folder: string;
  /** For LD_PRELOAD: the CUDA object, and both objects. */
  readonly cuda: string;
  readonly both: string;
  /** Rewrites the limits in place. */
  rewrite(gpus: readonly GrantGpu[]): void;
};
export type GrantGpu = {
  readonly gpu: number;
  readonly memoryBytes: number;
  readonly contextBytes?: number;
  readonly granuleBytes?: number;
  readonly late?: boolean;
  /** Provides a lease page; 0: the page limits nothing by itself. */
  readonly coresPercent?: number;
};

/** `contextBytes` and `granuleBytes` default to the node's own figures, which an agent would have measured. */
export function makeGrant(
  t: Teardown,
  node: Pick<SimulatedNode, 'usage' | 'uuidHex'>,
  gpus: readonly GrantGpu[],
  slots = 64,
  isolate = true,
): GrantFiles {
  const folder = join(temporaryFolder(t), 'grant');
  mkdirSync(folder);
  for (const name of interposerFiles()) symlinkSync(join(BUILD, name), join(folder, name));
  const write = (list: readonly GrantGpu[]) => {
    const books = node.usage();
    const args = list.map((entry) => {
      const facts = books.gpus[entry.gpu];
      const context = entry.contextBytes ?? facts?.contextBytes ?? 0;
      const granule = entry.granuleBytes ?? facts?.granuleBytes ?? 0;
      return `${node.uuidHex(entry.gpu)}:${entry.memoryBytes}:${context}:${granule}:${entry.late ? 1 : 0}${entry.coresPercent === undefined ? '' : `:${entry.coresPercent}`}`;
    });
    execFileSync(join(BUILD, 'tests/grant'), [folder, String(slots), isolate ? '1' : '0', ...args]);
  };
  write(gpus);
  const cuda = join(folder, 'libcotenant.so');
  return { folder, cuda, both: `${cuda} ${join(folder, 'libcotenant-nvml.so')}`, rewrite: write };
}

export type MountedForm = {
  /** For LD_LIBRARY_PATH: our objects under the driver's names. */
  readonly lib: string;
  /** Path of the driver's file in the container. */
  readonly cuda: string;
};

/** The interposer over the driver's files: our objects under the driver's names, the real ones at their place on the
 * node. */
export function mountOver(t: Teardown, node: Pick<SimulatedNode, 'lib'>, grant: GrantFiles): MountedForm {
  const lib = join(temporaryFolder(t), 'lib');
  mkdirSync(lib);
  for (const [object, name] of [
    ['libcotenant.so', 'libcuda.so'],
    ['libcotenant-nvml.so', 'libnvidia-ml.so'],
  ] as const) {
    const real = join(node.lib, `${name}.1`);
    const made = mountedObject(readFileSync(join(BUILD, object)), readFileSync(real), real, grant.folder);
    writeFileSync(join(lib, `${name}.580.95.05`), made.bytes);
    for (const link of [name, `${name}.1`]) symlinkSync(`${name}.580.95.05`, join(lib, link));
  }
  return { lib, cuda: join(lib, 'libcuda.so.580.95.05') };
}
