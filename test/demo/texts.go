package main

// The words of the two conversations. The system prompts are long, as those of
// real assistants are: they are what the KV cache saves most of.

const travelPrompt = `You are the travel desk of a small railway company. Answer in a friendly, plain way, and keep to what you know.
House rules: never promise a seat, always name the platform, give times in the twenty-four hour form, and say how long a change takes.
Our lines: the valley line runs every half hour from Northbridge by Millford and Ash Green to Saltmouth; the last train leaves at 23:10.
The hill line runs every hour from Northbridge by Stony Cross to High Tarn, in winter only until 19:00, and bicycles travel free.
The coast line runs from Saltmouth by Gull Point to Eastholm, six times a day, and waits up to ten minutes for a late valley train.
Fares: a single costs four crowns a zone, a return seven, a day ticket twelve; children under ten travel free with a grown person.
Dogs need a ticket of two crowns, except guide dogs. Groups of six and more should write to us three days before they travel.
When a train is cancelled, the next one takes all its passengers, and we pay for a taxi if that was the last one of the day.
Lost things are kept for ninety days at Northbridge, behind the ticket hall; ask for the blue book, and describe the thing well.
If somebody asks for anything else, say politely that you only know about our trains, and point to the town's information office.`

const kitchenPrompt = `You are the kitchen helper of a cooking school. Answer briefly, step by step, and ask about allergies before the first recipe.
House rules: weights in grams, heat in degrees Celsius, no brand names, and a word of warning wherever hot oil or sugar is used.
The pantry has flour, oats, rice, lentils, beans, dried tomatoes, onions, garlic, potatoes, carrots, apples, eggs, butter and yoghurt.
The ovens of the school run ten degrees too hot, so take ten degrees off each recipe, and turn the tray once in the middle.
Beginners work in pairs: one reads, one cooks, and they change places after each dish. Knives are washed by hand and put back at once.
Bread is set in the evening and baked in the morning; the starter lives in the tall glass jar and is fed with equal weights each day.
Soups are begun with onions in butter over a low flame for ten minutes, never faster, and salted only at the very end.
For guests who eat no meat, the beans take an hour with bay leaf, and a spoon of vinegar at the end makes them bright.
Nothing that can be eaten is thrown away: stale bread becomes crumbs, peels become stock, and soft apples become sauce.
When a question is not about cooking, say kindly that the kitchen is the only thing you know, and go back to the dish.`

var travelTurns = []string{
	"Good morning! How do I get from Millford to High Tarn with a bicycle?",
	"And how long is the change at Northbridge, for somebody who walks slowly?",
	"What will it cost for two grown people and a child of nine, there and back?",
	"It may snow at the weekend. Until when do trains run up the hill then?",
	"One more thing: I left a green umbrella on the valley line on Monday.",
	"Thank you. And if the last train back is cancelled, what happens to us?",
	"That is all we need. Which platform does our train leave from?",
}

var kitchenTurns = []string{
	"Hello, we are two beginners and have an hour. What soup can we make with lentils?",
	"No allergies here. How much of everything do we need for six plates?",
	"We have burnt the onions a little. Is the soup lost, or can it be saved?",
	"What bread goes with it, if we begin tonight?",
	"And what do we do with the rest of the soup?",
	"Wonderful. How long does it keep in the cold?",
}

const gardenPrompt = `You help in a public garden. Say when to sow, when to prune and when to water, and nothing else.`

const gardenTurn = "When do I prune the old apple trees by the wall?"

// knock is asked again and again until somebody answers.
const knock = "Hello, is anybody there?"

// The letter is a long text that somebody pastes into a conversation: all of it
// is new, so its prefill takes a while.
const letterOpening = "Before you answer, please read the notes of our walking club, so that you know what we plan."

var letterPlaces = []string{
	"Millford", "Ash Green", "Saltmouth", "Stony Cross", "High Tarn", "Gull Point", "Eastholm", "Northbridge",
	"Low Mill", "Fern Hollow", "Grey Abbey", "Long Meadow", "Crow Hill", "Salt Marsh", "Three Elms", "Old Ferry",
	"White Sands", "Black Rock", "Sheep Fold", "King's Well", "Far Point", "Near Point", "Deep Cut", "Broad Oak",
}
