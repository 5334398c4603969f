// A driver whose calls return at once (test/bench/drivers/idle.c), as a node with one GPU: the measured time of a call
// is then that of the interposer.
import { join } from 'node:path';
import { MIB } from '../product/grant.ts';
import { BUILD, type SimulatedNode } from './node.ts';

export const IDLE_CONTEXT_BYTES = 200 * MIB;

export const idleNode: Pick<SimulatedNode, 'usage' | 'uuidHex' | 'lib'> = {
  lib: join(BUILD, 'bench/idle'),
  usage: () => ({
    gpus: [
      {
        name: 'idle',
        totalBytes: Number.MAX_SAFE_INTEGER,
        reservedBytes: 0,
        usedBytes: 0,
        granuleBytes: 2 * MIB,
        contextBytes: IDLE_CONTEXT_BYTES,
      },
    ],
    clients: [],
    groups: [],
  }),
  uuidHex: () => 'ce'.repeat(16),
};
