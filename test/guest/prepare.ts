// Fetches QEMU and the kernel before the tests run. If that is not possible, the reason is printed here and again by
// each skipped test.
import { guestTools } from './tools.ts';

const tools = guestTools(console.log);
console.log(tools.ok ? `guest: ${tools.versions}` : `no guest here: ${tools.reason}`);
