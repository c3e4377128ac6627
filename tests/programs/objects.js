// COUNT [NUMBERS]: builds maps and arrays of COUNT objects and a typed array of NUMBERS (8) for each, sorts them and prints
// digests. Same bytes in every run.
const crypto = require("crypto");
const count = Number(process.argv[2]);
const numbersEach = Number(process.argv[3] || 8);
let state = 2463534242;
function number() {
  state ^= state << 13;
  state ^= state >>> 17;
  state ^= state << 5;
  return state >>> 0;
}
const byName = new Map();
const records = [];
for (let i = 0; i < count; i++) {
  const record = { id: i, name: "record-" + number().toString(16), values: [number(), number()] };
  records.push(record);
  byName.set(record.name, record);
}
records.sort((a, b) => a.values[0] - b.values[0] || a.id - b.id);
const numbers = new Uint32Array(count * numbersEach);
for (let i = 0; i < numbers.length; i++) numbers[i] = number();
numbers.sort();
const digest = crypto.createHash("sha256");
for (const record of records) digest.update(record.name);
let sum = 0;
for (const [name, record] of byName) sum = (sum * 31 + name.length + record.values[1]) % 1000000007;
for (let i = 0; i < records.length; i += 3) byName.delete(records[i].name);
console.log(JSON.stringify(records.filter((_, i) => i % 20 === 0)));
console.log(digest.digest("hex"), sum, byName.size);
console.log(crypto.createHash("sha256").update(Buffer.from(numbers.buffer)).digest("hex"));
