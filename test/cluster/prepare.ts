// Fetches and builds what a test cluster stands on, before any test waits for it. Where there can be none, the reason is said
// here and again by each test that is skipped for it.
import { bedGround } from './bed/bed.ts';

const ground = bedGround(console.log);
console.log(ground.ok ? `test cluster: ${ground.versions}` : `no test cluster here: ${ground.reason}`);
