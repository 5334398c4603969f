// Fetches what the guest stands on before any test waits for it. Where there can be none, the reason is said here and again by
// each test that is skipped for it.
import { guestGround } from './ground.ts';

const ground = guestGround(console.log);
console.log(ground.ok ? `guest: ${ground.versions}` : `no guest here: ${ground.reason}`);
