// `node test/boards/pictures.ts`: draws the pictures of docs/operate/boards.md anew, as they are seen first, on a fleet of
// two nodes with eight GPUs each.
import { join } from 'node:path';
import { withTeardown } from '../bench/bench.ts';
import { drawingReason } from './draw.ts';
import { drawFleet } from './scenes.ts';

const INTO = join(import.meta.dirname, '../../docs/operate/boards');

const reason = drawingReason();
if (reason !== undefined) throw new Error(reason);
await withTeardown((scope) => drawFleet(scope, { size: { gpus: 8, tenants: 50 }, into: INTO, small: true }));
