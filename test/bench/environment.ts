// What a program of a tenant is measured over: a driver, with and without the interposer in front of it.
import { closeSync, openSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { loadNative } from '../../src/agent/os/addon.ts';
import { idleNode } from '../support/native/idle.ts';
import { BUILD, startNode, type Teardown } from '../support/native/node.ts';
import { MIB, makeGrant } from '../support/product/grant.ts';

const GRANT_BYTES = 64 * 1024 * MIB;
/** As an agent makes them. */
const SLOTS = 1024;

/** A preload that only forwards (test/bench/preloads/forward.c). */
export const FORWARD = join(BUILD, 'bench/forward.so');

export type Setting = {
  /** Folder of the driver. */
  readonly lib: string;
  /** The interposer inside a grant's folder, or FORWARD; undefined: straight to the driver. */
  readonly preload?: string | undefined;
};

export function environmentOf({ lib, preload }: Setting): Record<string, string> {
  return { LD_LIBRARY_PATH: lib, ...(preload === undefined ? {} : { LD_PRELOAD: preload }) };
}

/** A driver to measure over, and how a container's files for it are made. */
export type Environment = {
  readonly what: string;
  readonly lib: string;
  grant(scope: Teardown, isolate?: boolean): Setting;
};

export function idleEnvironment(): Environment {
  const { lib } = idleNode;
  const gpu = { gpu: 0, memoryBytes: GRANT_BYTES };
  return {
    what: 'a driver whose calls return at once',
    lib,
    grant: (scope, isolate = true) => ({ lib, preload: makeGrant(scope, idleNode, [gpu], SLOTS, isolate).cuda }),
  };
}

export async function simulatedEnvironment(scope: Teardown): Promise<Environment> {
  const node = await startNode(scope, '--gpu', 'h100', '--kernel-us', '1');
  return {
    what: 'the simulated driver',
    lib: node.lib,
    grant: (inner, isolate = true) => {
      const grant = makeGrant(inner, node, [{ gpu: 0, memoryBytes: GRANT_BYTES }], SLOTS, isolate);
      return { lib: node.lib, preload: grant.cuda };
    },
  };
}

/** As an agent that has measured every process of the grant, and found a little more than each of them charged. */
export function writeFeedback({ preload }: Setting): void {
  if (preload === undefined) throw new Error('nothing is fed back without a grant');
  const native = loadNative();
  const [page, ledger] = ['limits', 'ledger'].map((name) => openSync(join(dirname(preload), name), 'r+'));
  if (page === undefined || ledger === undefined) throw new Error('no files');
  const taken = native.readLedger(ledger, SLOTS, 1).slots;
  const entries = taken.map(({ index, stamp }) => ({
    slot: index,
    gpu: 0,
    stamp,
    residualBytes: MIB,
    releasedBytes: 0,
    signature: 0n,
    deadStamp: 0n,
  }));
  native.writeFeedback(page, 1, entries);
  closeSync(page);
  closeSync(ledger);
}
