// Fetches QEMU and the kernel before the tests run. If that is not possible, the reason is printed here and again by each skipped
// test.
import { guestGround } from './ground.ts';

const ground = guestGround(console.log);
console.log(ground.ok ? `guest: ${ground.versions}` : `no guest here: ${ground.reason}`);
