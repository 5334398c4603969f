// Fetches and builds what a test cluster needs before the tests run. If that is not possible, the reason is printed
// here and again by each skipped test.

import { goPrograms } from '../support/toolchains/go-programs.ts';
import { bedTools } from './bed/bed.ts';
import { earlierRelease } from './bed/earlier.ts';
import { METRICS_ADAPTER } from './bed/kubernetes.ts';

const tools = bedTools(console.log);
console.log(tools.ok ? `test cluster: ${tools.versions}` : `no test cluster here: ${tools.reason}`);
const earlier = tools.ok ? earlierRelease(console.log) : undefined;
if (earlier?.ok === false) console.log(`no upgrade is tested here: ${earlier.reason}`);
const adapter = goPrograms(METRICS_ADAPTER, console.log);
if (!adapter.ok) console.log(adapter.reason);
