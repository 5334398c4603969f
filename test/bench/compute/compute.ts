// Compute shares in the laboratory: the arbiter's and the gate's own code on a GPU in virtual time, peers' laws beside
// it in the same run; and with real processes on the simulated driver.
import type { Bench } from '../bench.ts';
import { collectives } from './collectives.ts';
import { kinds } from './kinds.ts';
import { live } from './live.ts';
import { mixes } from './mixes.ts';
import { real } from './real.ts';
import { shares } from './shares.ts';

export const compute: Bench = {
  name: 'compute',
  what: 'shares of compute, on a GPU in virtual time and of real processes',
  async run(_scope, options) {
    return [
      ...(await shares(options)),
      ...(await mixes(options)),
      ...(await kinds(options)),
      ...(await collectives(options)),
      ...(await live(options)),
      ...(await real(options)),
    ];
  },
};
