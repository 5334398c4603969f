// Fetches and builds what a test cluster needs before the tests run. If that is not possible, the reason is printed here and
// again by each skipped test.
import { bedGround } from './bed/bed.ts';

const ground = bedGround(console.log);
console.log(ground.ok ? `test cluster: ${ground.versions}` : `no test cluster here: ${ground.reason}`);
